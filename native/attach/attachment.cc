#include "attach/attachment.h"

#include "attach/client/client_server.h"
#include "attach/nbd/server.h"

namespace nvmeof::attach {

namespace {

Error being_detached() {
  return Error{ECANCELED, "the namespace is being detached"};
}

}  // namespace

Result<std::unique_ptr<Attachment>> Attachment::create(const std::vector<Place>& places,
                                                       const Geometry& geometry) {
  if (places.empty()) return Error{EINVAL, "attach: no queue"};
  std::unique_ptr<Attachment> made(new Attachment);
  for (const Place& place : places) {
    auto lane =
        NamespaceLane::create(place.engine, place.reactor, place.queue, place.limits, geometry);
    if (!lane) return lane.error();
    made->on_.push_back({place.reactor, lane->get()});
    made->lanes_.push_back(std::move(*lane));
  }
  return made;
}

Attachment::~Attachment() = default;

Result<void> Attachment::serve_nbd(const std::string& path, std::string description,
                                   nbd::NbdCounters* counters) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return being_detached();
  auto server = nbd::Server::start(path, on_, std::move(description), counters);
  if (!server) return server.error();
  consumers_.push_back(std::move(*server));
  return {};
}

Result<void> Attachment::serve_clients(const std::string& path, ClientCounters* counters) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return being_detached();
  auto server = ClientServer::start(path, on_, counters);
  if (!server) return server.error();
  consumers_.push_back(std::move(*server));
  return {};
}

void Attachment::begin_stop() {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  stopping_ = true;
  for (const auto& consumer : consumers_) consumer->begin_stop();
}

void Attachment::finish() {
  begin_stop();
  const std::lock_guard lock(finish_mutex_);
  for (const auto& consumer : consumers_) consumer->wait_stopped();
  consumers_.clear();
  on_.clear();
  lanes_.clear();
}

}  // namespace nvmeof::attach

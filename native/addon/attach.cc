// Attached namespaces: lanes on the reactors of a controller's I/O queues, and the servers that
// other processes use them through.
#include "addon/async.h"
#include "addon/attach_entry.h"
#include "addon/instance.h"

namespace nvmeof::addon {

namespace {

attach::Geometry unpack(const Argument& from) {
  attach::Geometry geometry;
  geometry.nsid = from["nsid"].u32(1, 0xFFFFFFFE);
  geometry.lba_bytes = from["lbaBytes"].u32(512, 1u << 16);
  geometry.lba_count = from["lbaCount"].u64();
  geometry.transfer_max = from["transferBytesMax"].u32(512, nvmf::kHostTransferMax);
  geometry.write_zeroes_max = from["writeZeroesBlocksMax"].u64();
  geometry.discard_max = from["discardBlocksMax"].u64();
  geometry.read_only = from["readOnly"].boolean();
  geometry.can_write_zeroes = from["writeZeroes"].boolean();
  geometry.can_deallocate = from["deallocate"].boolean();
  geometry.volatile_write_cache = from["volatileWriteCache"].boolean();
  return geometry;
}

// One lane a reactor: the first of its queues.
std::vector<attach::Attachment::Place> places_of(Instance& instance, const Argument& options,
                                                 uint32_t& device) {
  constexpr reactor::TimeNs kMs = 1'000'000;
  const attach::LaneLimits limits{options["depth"].u32(1, 65535),
                                  kMs * options["commandTimeoutMs"].u32()};
  std::vector<attach::Attachment::Place> places;
  std::set<reactor::Reactor*> taken;
  for (const ConnectedQueue& queue : connected_queues(instance, "attach", options["queues"])) {
    if (!places.empty() && queue.device != device) {
      throw_error(instance.env, {EINVAL, "attach: the queues belong to several devices"});
    }
    device = queue.device;
    if (taken.insert(queue.reactor).second)
      places.push_back({queue.engine, queue.reactor, queue.id, limits});
  }
  return places;
}

}  // namespace

Napi::Value attach_namespace(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const Argument options = arguments.at(0, "options");
  const attach::Geometry geometry = unpack(options["geometry"]);
  uint32_t device = 0;
  const auto places = places_of(instance, options, device);
  auto entry = std::make_shared<AttachEntry>();
  entry->device = device;
  entry->attachment = value_or_throw(env, attach::Attachment::create(places, geometry));
  return Napi::Number::New(env, instance.attachments.add(std::move(entry)));
}

Napi::Value serve_nbd(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  AttachEntry& entry = *instance.attachments.get(env, arguments.at(0, "attachment").u32());
  const std::string path = arguments.at(1, "path").text();
  const std::string description = arguments.at(2, "description").text();
  const auto served = entry.attachment->serve_nbd(path, description, &entry.nbd);
  if (!served) throw_error(env, served.error());
  return env.Undefined();
}

Napi::Value serve_clients(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  AttachEntry& entry = *instance.attachments.get(env, arguments.at(0, "attachment").u32());
  const std::string path = arguments.at(1, "path").text();
  const auto served = entry.attachment->serve_clients(path, &entry.clients);
  if (!served) throw_error(env, served.error());
  return env.Undefined();
}

Napi::Value detach(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "attachment").u32();
  const std::shared_ptr<AttachEntry> entry = instance.attachments.get(env, id);
  return Async::run(
      env,
      [entry]() -> Result<void> {
        entry->attachment->finish();
        return {};
      },
      [](Napi::Env done) { return done.Undefined(); },
      [id](Napi::Env done) { Instance::of(done).attachments.erase(id); });
}

}  // namespace nvmeof::addon

#include "attach/client/client_hub.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace nvmeof::attach {

ClientHub::ClientHub(reactor::Reactor* reactor, NamespaceLane* lane, ClientCounters* counters,
                     Ended ended)
    : reactor_(reactor), lane_(lane), counters_(counters), ended_(std::move(ended)) {}

ClientHub::~ClientHub() {
  assert(clients_.empty());
}

// In the loop only while there are clients: an attached namespace without them costs nothing.
void ClientHub::add(int socket) {
  if (clients_.empty()) {
    reactor_->add(&intake_, reactor::Stage::Receive);
    reactor_->add(&outlet_, reactor::Stage::Block);
  }
  reactor_->add_fd(socket);
  clients_.push_back(
      {std::make_unique<ClientSession>(socket, lane_, counters_, reactor_->now()), true});
}

void ClientHub::close(int error, const std::string& reason) {
  for (Client& client : clients_) client.session->end(error, reason);
}

int ClientHub::take(reactor::TimeNs now) {
  int handled = 0;
  for (Client& client : clients_) {
    handled += client.session->take(now);
    if (!client.session->is_listening()) stop_watching(client);
  }
  return handled;
}

int ClientHub::publish() {
  int handled = 0;
  for (Client& client : clients_) handled += client.session->publish();
  if (gone_) forget_gone();
  return handled;
}

bool ClientHub::arm() {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const Client& client) { return client.session->arm(); });
}

reactor::TimeNs ClientHub::next_deadline() const {
  reactor::TimeNs deadline = reactor::kNever;
  for (const Client& client : clients_) {
    deadline = std::min(deadline, client.session->next_deadline());
  }
  return deadline;
}

// A socket that the other end has closed stays readable: it would end every sleep.
void ClientHub::stop_watching(Client& client) {
  if (std::exchange(client.watched, false)) reactor_->remove_fd(client.session->socket());
  gone_ = true;
}

void ClientHub::forget_gone() {
  gone_ = false;
  for (size_t i = 0; i < clients_.size();) {
    const ClientSession& session = *clients_[i].session;
    if (session.state() != ClientSession::State::Over) {
      gone_ = gone_ || !session.is_listening();
      i++;
      continue;
    }
    const std::string reason = session.reason();
    std::swap(clients_[i], clients_.back());
    clients_.pop_back();
    if (clients_.empty()) {
      reactor_->remove(&intake_);
      reactor_->remove(&outlet_);
    }
    ended_(reason);
  }
}

}  // namespace nvmeof::attach

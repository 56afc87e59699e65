// Devices: an address opened with a provider, and its share of every reactor.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "addon/address.h"
#include "addon/attach_entry.h"
#include "addon/bench_run.h"
#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {

// How long closeDevice waits for queues to end in good order before it drops
// them, and for I/O that hangs.
constexpr reactor::TimeNs kCloseWait = 1'000'000'000;

// By rdma::Fabric.
constexpr const char* kFabrics[] = {"rocev2", "infiniband", "iwarp"};

rdma::DeviceOptions unpack(const Arguments& arguments) {
  static constexpr const char* providers[] = {"auto", "soft", "verbs"};
  const Argument options = arguments.at(0, "options");
  rdma::DeviceOptions unpacked;
  unpacked.provider = providers[options["provider"].word({"auto", "soft", "verbs"})];
  unpacked.address = value_or_throw(arguments.env(), parse_address(options["address"].text(), 0));
  const Argument mtu = options["pathMtu"];
  unpacked.path_mtu = mtu.u32_or(0, 0, 4096);
  if (unpacked.path_mtu != 0 &&
      (unpacked.path_mtu < 256 || (unpacked.path_mtu & (unpacked.path_mtu - 1)))) {
    mtu.out_of_range("0, 256, 512, 1024, 2048 or 4096");
  }
  unpacked.socket_buffer_bytes =
      options["socketBufferBytes"].u32_or(unpacked.socket_buffer_bytes, 4096, 1u << 30);
  unpacked.pcap_path = options["pcapPath"].text_or("");
  unpacked.full_icrc =
      !options["icrc"].absent() && options["icrc"].word({"recovered", "full"}) == 1;
  unpacked.fault_injection = options["faultInjection"].boolean_or(false);
  unpacked.local_ack_timeout = options["localAckTimeout"].u32_or(unpacked.local_ack_timeout, 0, 31);
  unpacked.connect_timeout_ms =
      options["connectTimeoutMs"].u32_or(unpacked.connect_timeout_ms, 1, 3'600'000);
  return unpacked;
}

nvmf::TargetLimits unpack_limits(const Arguments& arguments) {
  nvmf::TargetLimits limits;
  limits.in_capsule_bytes =
      arguments.at(0, "options")["inCapsuleBytesMax"].u32_or(limits.in_capsule_bytes, 0, 1u << 17);
  return limits;
}

bool busy(const Device& device) {
  return std::any_of(device.on.begin(), device.on.end(), [](const auto& on) { return on->busy(); });
}

// By the names that the provider's counters have.
double counter(const Device& device, const char* name) {
  for (const rdma::CounterValue& value : device.device->counters()) {
    if (std::strcmp(value.name, name) == 0) return static_cast<double>(value.value);
  }
  return 0;
}

bool is_soft(const Device& device) {
  const auto all = device.device->counters();
  return std::any_of(all.begin(), all.end(), [](const rdma::CounterValue& value) {
    return std::strncmp(value.name, "soft.", 5) == 0;
  });
}

// The provider asks for it on every socket; an old kernel says no.
bool kernel_has_gro() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const bool has = setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
  close(fd);
  return has;
}

}  // namespace

Napi::Value open_device(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const rdma::DeviceOptions options = unpack(arguments);
  nvmf::TargetLimits limits = unpack_limits(arguments);
  limits.sole_reactor = instance.runtime->sides.size() == 1;
  std::vector<reactor::Reactor*> reactors;
  for (const auto& side : instance.runtime->sides) reactors.push_back(side->reactor.get());

  auto device = std::make_unique<Device>();
  device->device = value_or_throw(env, rdma::open_device(options, reactors));
  for (const auto& side : instance.runtime->sides) {
    auto on =
        std::make_unique<DeviceOnReactor>(device->device.get(), side->reactor.get(), &side->ring,
                                          side->multipath->engine(), &side->tables, limits);
    device->router.set(side->reactor->index(), on.get());
    post(*side->reactor, [side = side.get(), on = on.get()] { side->devices.push_back(on); });
    device->on.push_back(std::move(on));
    device->staging.push_back(std::make_shared<Staging>(instance.runtime->sides.size()));
  }
  const uint32_t id = instance.devices.add(std::move(device));
  instance.update_keep_alive();
  return Napi::Number::New(env, id);
}

Napi::Value device_info(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  const Device& device = *Instance::of(env).devices.get(env, arguments.at(0, "device").u32());
  const rdma::Capabilities& capabilities = device.device->capabilities();
  const bool soft = is_soft(device);
  Napi::Object info = Napi::Object::New(env);
  info.Set("provider", soft ? "soft" : "verbs");
  info.Set("rdmaDevice", device.device->name());
  info.Set("fabric", kFabrics[static_cast<size_t>(capabilities.fabric)]);
  info.Set("address", format_address(device.device->address()));
  info.Set("pathMtu", Napi::Number::New(env, capabilities.path_mtu));
  info.Set("receiveBufferBytes",
           Napi::Number::New(env, counter(device, "socket.receive_buffer_bytes")));
  info.Set("gso", Napi::Boolean::New(env, counter(device, "socket.gso") != 0));
  info.Set("gro", Napi::Boolean::New(env, soft && kernel_has_gro()));
  info.Set("maxResponderResources", Napi::Number::New(env, capabilities.max_responder_resources));
  info.Set("maxInitiatorDepth", Napi::Number::New(env, capabilities.max_initiator_depth));
  return info;
}

void Instance::close_device(uint32_t id) {
  Device& device = **devices.find(id);
  std::vector<std::pair<uint32_t, uint32_t>> listening;  // ours, the device's
  for (const auto& [listener, entry] : listeners.all()) {
    if (entry.device == id) listening.emplace_back(listener, entry.device_listener);
  }
  side(0).reactor->run_and_wait([&] {
    for (const auto& [ours, theirs] : listening) {
      device.device->unlisten(theirs);
      device.on[0]->forget_listener(theirs);
    }
  });
  for (const auto& [ours, theirs] : listening) listeners.erase(ours);
  std::erase_if(connections, [id](const auto& entry) { return entry.second == id; });

  for (const auto& run : benches) {
    if (run->uses(id)) run->stop();
  }
  std::vector<std::pair<uint32_t, std::shared_ptr<AttachEntry>>> attached;
  for (const auto& [number, entry] : attachments.all()) {
    if (entry->device == id) attached.emplace_back(number, entry);
  }
  for (const auto& [number, entry] : attached) entry->attachment->begin_stop();
  for (const auto& on : device.on) {
    on->reactor()->run_and_wait([&on] { on->begin_close(); });
  }
  for (const auto& run : benches) {
    if (run->uses(id)) run->wait();
  }
  // Closed queues end what is in flight.
  for (const auto& [number, entry] : attached) {
    entry->attachment->finish();
    attachments.erase(number);
  }
  const reactor::TimeNs give_up = reactor::monotonic_now() + kCloseWait;
  while (busy(device) && reactor::monotonic_now() < give_up) {
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  for (const auto& reactor_side : runtime->sides) {
    DeviceOnReactor* on = device.on[reactor_side->reactor->index()].get();
    reactor_side->reactor->run_and_wait([&] {
      on->tear_down();
      std::erase(reactor_side->devices, on);
    });
  }
  // Their last events wait in the rings; calls that name them find them gone.
  std::erase_if(queues.all(), [id](const auto& entry) { return entry.second.device == id; });
  devices.erase(id);
  update_keep_alive();
}

Napi::Value close_device(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "device").u32();
  instance.devices.get(env, id);
  instance.close_device(id);
  return env.Undefined();
}

}  // namespace nvmeof::addon

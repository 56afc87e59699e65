#include "rdma/soft/port_owner.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "rdma/soft/flow.h"

namespace nvmeof::rdma::soft {

namespace {

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

// "0100007F" or 32 digits, each group of 8 a 32-bit word of the machine (fs: net/ipv4/udp.c).
bool parse_address(const char* hex, size_t digits, uint16_t port, sockaddr_storage* out) {
  uint32_t words[4] = {};
  const size_t count = digits / 8;
  if (digits != 8 && digits != 32) return false;
  for (size_t i = 0; i < count; i++) {
    char group[9] = {};
    std::memcpy(group, hex + i * 8, 8);
    words[i] = static_cast<uint32_t>(std::strtoul(group, nullptr, 16));
  }
  *out = {};
  if (digits == 8) {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(out);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::memcpy(&v4->sin_addr, words, 4);
  } else {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(out);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, words, 16);
  }
  return true;
}

// One line: "  12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  UID
// TIMEOUT INODE ..."
bool parse_line(const char* line, uint16_t port, PortOwner* owner, sockaddr_storage* local) {
  char hex[33];
  unsigned local_port = 0;
  unsigned uid = 0;
  uint64_t inode = 0;
  const int fields = std::sscanf(
      line, " %*d: %32[0-9A-Fa-f]:%x %*32[0-9A-Fa-f]:%*x %*x %*x:%*x %*x:%*x %*x %u %*d %" SCNu64,
      hex, &local_port, &uid, &inode);
  if (fields != 4 || local_port != port) return false;
  if (!parse_address(hex, std::strlen(hex), port, local)) return false;
  owner->uid = uid;
  owner->inode = inode;
  owner->local = to_string(*local);
  owner->wildcard = is_unspecified(*local);
  return true;
}

void scan_table(const char* path, const sockaddr_storage& address, uint16_t port,
                std::vector<PortOwner>* owners) {
  std::ifstream table(path);
  std::string line;
  std::getline(table, line);  // the heading
  while (std::getline(table, line)) {
    PortOwner owner;
    sockaddr_storage local;
    if (!parse_line(line.c_str(), port, &owner, &local)) continue;
    const bool any = address.ss_family == AF_UNSPEC;
    if (any || owner.wildcard || same_address(local, address)) owners->push_back(std::move(owner));
  }
}

std::string command_of(const char* pid) {
  std::ifstream file(std::string("/proc/") + pid + "/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (char& c : command) {
    if (!std::isprint(static_cast<unsigned char>(c))) c = ' ';
  }
  while (!command.empty() && command.back() == ' ') command.pop_back();
  constexpr size_t kShown = 120;
  if (command.size() > kShown) command = command.substr(0, kShown) + "...";
  if (!command.empty()) return command;
  std::ifstream name(std::string("/proc/") + pid + "/comm");
  std::getline(name, command);
  return command;
}

bool holds_socket(const char* pid, uint64_t inode) {
  const std::string folder = std::string("/proc/") + pid + "/fd";
  const Directory fds(opendir(folder.c_str()), closedir);
  if (fds == nullptr) return false;
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  while (const dirent* entry = readdir(fds.get())) {
    char target[64];
    const std::string link = folder + "/" + entry->d_name;
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    if (length == static_cast<ssize_t>(wanted.size()) &&
        std::memcmp(target, wanted.data(), wanted.size()) == 0) {
      return true;
    }
  }
  return false;
}

void find_process(PortOwner* owner) {
  if (owner->inode == 0) return;
  const Directory processes(opendir("/proc"), closedir);
  if (processes == nullptr) return;
  while (const dirent* entry = readdir(processes.get())) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    if (!holds_socket(entry->d_name, owner->inode)) continue;
    owner->pid = static_cast<pid_t>(std::atol(entry->d_name));
    owner->command = command_of(entry->d_name);
    return;
  }
}

}  // namespace

bool module_loaded(const char* name) {
  std::ifstream modules("/proc/modules");
  std::string line;
  const std::string wanted = std::string(name) + " ";
  while (std::getline(modules, line)) {
    if (line.compare(0, wanted.size(), wanted) == 0) return true;
  }
  return false;
}

std::vector<PortOwner> port_owners(const sockaddr_storage& address, uint16_t port) {
  std::vector<PortOwner> owners;
  scan_table("/proc/thread-self/net/udp", address, port, &owners);
  scan_table("/proc/thread-self/net/udp6", address, port, &owners);
  const bool rxe = module_loaded("rdma_rxe");
  for (PortOwner& owner : owners) {
    find_process(&owner);
    owner.rdma_rxe = owner.pid == 0 && rxe && owner.wildcard;
  }
  return owners;
}

std::string port_in_use_message(const sockaddr_storage& address, uint16_t port) {
  const std::string what =
      "UDP port " + std::to_string(port) + " on " + to_string(address) + " is already held by ";
  const auto owners = port_owners(address, port);
  for (const PortOwner& owner : owners) {
    if (owner.pid == getpid()) {
      return what + "this process: use the device that is already open.";
    }
    if (owner.pid != 0) {
      return what + "process " + std::to_string(owner.pid) + " (" + owner.command +
             "): one process opens an address, so stop that one or use another local address.";
    }
    if (owner.rdma_rxe) {
      return what +
             "the rdma_rxe kernel module: unload it (`rmmod rdma_rxe`), or use another network "
             "namespace.";
    }
  }
  if (!owners.empty() && owners.front().inode != 0) {
    return what + "a process of user " + std::to_string(owners.front().uid) +
           " that cannot be seen from here: look with `sudo ss -ulpn sport = :" +
           std::to_string(port) + "`, stop it or use another local address.";
  }
  return what + "someone who is not visible in /proc/net/udp: look with `sudo ss -ulpn sport = :" +
         std::to_string(port) + "`, stop it or use another local address.";
}

}  // namespace nvmeof::rdma::soft

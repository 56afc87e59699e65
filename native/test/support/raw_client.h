// A client over shared memory that does what the test says and keeps no rule.
#pragma once
#include <poll.h>

#include "support/client_rig.h"
#include "support/receive_answer.h"

namespace nvmeof::test {

class RawClient {
 public:
  static constexpr uint32_t kEntries = 16;
  static constexpr uint64_t kData = 64 << 10;
  static nvmeof_ring_hello good_hello() {
    return {NVMEOF_RING_MAGIC, NVMEOF_RING_VERSION, kEntries, 0, kData};
  }

  explicit RawClient(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  }
  ~RawClient() {
    if (words != nullptr) munmap(words, layout.total);
    if (memory_fd >= 0) close(memory_fd);
    close(socket);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void say(const void* bytes, size_t length) {
    send(socket, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void ring() { say("", 1); }
  void say_with_descriptor(int fd) {
    char bell = 0;
    iovec part{&bell, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* const passed = CMSG_FIRSTHDR(&header);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(passed), &fd, sizeof fd);
    sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  // The next message that is longer than a doorbell; all zero when there is none within ten
  // seconds.
  nvmeof_ring_answer hear() {
    for (;;) {
      pollfd fd{socket, POLLIN, 0};
      if (poll(&fd, 1, 10'000) <= 0) return {};
      nvmeof_ring_answer answer;
      const ssize_t length = receive_answer(socket, MSG_CMSG_CLOEXEC, &answer, &memory_fd);
      if (length < 0 && errno == ECONNRESET) continue;
      if (length <= 0) return {};
      if (length == 1) continue;
      return answer;
    }
  }
  bool at_end() {
    pollfd fd{socket, POLLIN, 0};
    if (poll(&fd, 1, 10'000) <= 0) return false;
    char byte;
    ssize_t length = recv(socket, &byte, 1, 0);
    if (length < 0 && errno == ECONNRESET) length = recv(socket, &byte, 1, 0);
    return length == 0;
  }
  // The server has closed, or said Goodbye.
  bool was_dropped() {
    char bytes[2];
    ssize_t length = 0;
    while ((length = recv(socket, bytes, sizeof bytes, MSG_DONTWAIT)) == 1) continue;
    return length >= 0 || errno == ECONNRESET;
  }
  bool join() {
    const nvmeof_ring_hello hello = good_hello();
    say(&hello, sizeof hello);
    const auto answer = hear();
    if (answer.magic != NVMEOF_RING_MAGIC || answer.error != 0 || memory_fd < 0) return false;
    layout = nvmeof_ring_layout_of(kEntries, kData);
    void* const mapped =
        mmap(nullptr, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    if (mapped == MAP_FAILED) return false;
    words = static_cast<nvmeof_ring_words*>(mapped);
    return true;
  }
  void put_entry(const nvmeof_ring_entry& entry) {
    put_entry(entry, static_cast<uint32_t>(entry.user_data));
  }
  void put_entry(const nvmeof_ring_entry& entry, uint32_t place) {
    auto* const slots = reinterpret_cast<nvmeof_ring_entry*>(reinterpret_cast<uint8_t*>(words) +
                                                             layout.submissions);
    std::memcpy(&slots[place % kEntries], &entry, sizeof entry);
  }
  void set_tail(uint32_t tail) {
    __atomic_store_n(&words->submission_tail, tail, __ATOMIC_SEQ_CST);
  }
  // Anything but the submission tail.
  template <typename Random>
  void scribble_words(Random& random) {
    __atomic_store_n(&words->completion_tail, static_cast<uint32_t>(random()), __ATOMIC_SEQ_CST);
    __atomic_store_n(&words->server_sleeping, static_cast<uint32_t>(random()), __ATOMIC_SEQ_CST);
    __atomic_store_n(&words->client_sleeping, static_cast<uint32_t>(random()), __ATOMIC_SEQ_CST);
  }
  void wait_for(uint32_t tail) {
    for (int i = 0; i < 1000; i++) {
      if (__atomic_load_n(&words->completion_tail, __ATOMIC_ACQUIRE) == tail) return;
      ring();
      usleep(10);
    }
  }

  int socket = -1;
  int memory_fd = -1;
  nvmeof_ring_layout layout{};
  nvmeof_ring_words* words = nullptr;
};

}  // namespace nvmeof::test

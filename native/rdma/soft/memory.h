// Protection domains, memory regions, memory windows, and the table that turns lkeys and rkeys into
// pointers. Registration from any thread (a mutex); look-up, bind and invalidate on reactor threads
// without locks or allocation.
//
// A key is the encryption of (slot, generation) under a secret of this process: unguessable, and a
// used-up key of a slot does not come back for 32,767 others. Look-up decrypts it, so there is no
// hash table.
//
// Deregistration from another thread than the one that copies: the reader brackets its work on
// resolved pointers with a KeyTable::Section, and the end of a region waits for sections under way.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rdma/provider.h"

namespace nvmeof::rdma::soft {

enum class KeyFault : uint8_t {
  None,
  UnknownKey,      // never was, revoked, or of another kind
  WrongDomain,     // of another protection domain
  WrongQueuePair,  // a window bound to another queue pair
  AccessDenied,    // a right is missing
  OutOfRange,
};
const char* to_string(KeyFault fault);

struct Resolved {
  uint8_t* pointer = nullptr;
  KeyFault fault = KeyFault::UnknownKey;
  explicit operator bool() const { return fault == KeyFault::None; }
};

struct MemoryCounters {
  uint64_t regions, windows, bound_windows, protection_domains;  // alive now
};

class SoftMemoryRegion;
class SoftMemoryWindow;

class KeyTable : public std::enable_shared_from_this<KeyTable> {
 public:
  static constexpr unsigned kIndexBits = 17;
  static constexpr uint32_t kSlots = 1u << kIndexBits;

  static std::shared_ptr<KeyTable> create();
  ~KeyTable();
  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;

  Result<std::unique_ptr<ProtectionDomain>> allocate_pd();  // any thread
  MemoryCounters counters() const;                          // any thread

  // ---- Data path. `length` 0 resolves without looking at the key, as IBTA 9.7.4.1.1 wants for
  // zero length RDMA; the pointer is then null. Local: for reading (access 0) or kLocalWrite. Only
  // regions have lkeys.
  Resolved resolve_local(uint32_t lkey, uint32_t domain, uint64_t address, uint64_t length,
                         uint8_t access) const;
  // Remote: kRemoteRead, kRemoteWrite or kRemoteAtomic; a region, or a window bound to queue pair
  // `qpn`.
  Resolved resolve_remote(uint32_t rkey, uint32_t domain, uint32_t qpn, uint64_t address,
                          uint64_t length, uint8_t access) const;
  // BindMemoryWindow: gives the window the rkey that its next_rkey() announced. On any fault
  // nothing changed.
  KeyFault bind(SoftMemoryWindow& window, const SoftMemoryRegion& region, uint32_t domain,
                uint32_t qpn, uint64_t address, uint64_t length, uint32_t rkey, uint8_t access);
  // Ends the rkey of a window bound to `qpn`: SEND with invalidate of the peer.
  KeyFault invalidate(uint32_t rkey, uint32_t domain, uint32_t qpn);
  // LocalInvalidate: no fault either when the peer ended the same binding first, as it may at any
  // time while the owner's request waits its turn.
  KeyFault invalidate_own(uint32_t rkey, uint32_t domain, uint32_t qpn);

  // ---- Readers on other threads than the one that ends regions: one Reader a thread.
  class Section;
  class Reader {
   public:
    explicit Reader(std::shared_ptr<KeyTable> table);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    friend class KeyTable;
    friend class Section;
    std::shared_ptr<KeyTable> table_;
    std::atomic<uint64_t> epoch_{0};  // odd: inside a section
  };
  // Held while resolved pointers are in use: one for a whole poll iteration is meant. Not nested.
  // Regions may be ended inside (no pointer resolved before may be used after that).
  class Section {
   public:
    explicit Section(Reader& reader);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    std::atomic<uint64_t>& epoch_;
    std::atomic<uint64_t>* outer_;  // of a section of another device's table around this one
  };

 private:
  friend class SoftMemoryRegion;
  friend class SoftMemoryWindow;
  friend class SoftProtectionDomain;
  enum class Kind : uint8_t { Free, Region, Window };
  struct alignas(64) Slot;

  KeyTable();
  uint32_t encrypt(uint32_t plain) const;
  uint32_t decrypt(uint32_t key) const;
  uint32_t key_of(uint32_t index, uint32_t generation) const;
  uint32_t advance(uint32_t index);  // the slot's next generation and its key
  const Slot* find(uint32_t key) const;
  Resolved check(const Slot& slot, uint32_t key, uint32_t domain, uint64_t address, uint64_t length,
                 uint8_t access) const;
  Result<uint32_t> take_slot(Kind kind);
  void end_slot(uint32_t index);  // the key dies, readers leave, the slot is free
  void wait_for_readers();

  Slot* slots_;
  uint64_t secret_[4];
  mutable std::mutex mutex_;  // of the free list; not held while waiting for readers
  std::vector<uint32_t> free_;
  uint32_t untouched_ = 0;  // slots from here on were never used
  std::mutex readers_mutex_;
  std::vector<Reader*> readers_;
  std::atomic<uint32_t> next_domain_{1};
  std::atomic<uint64_t> domains_{0};
};

class SoftProtectionDomain final : public ProtectionDomain {
 public:
  SoftProtectionDomain(std::shared_ptr<KeyTable> table, uint32_t id);
  ~SoftProtectionDomain() override;
  Result<std::unique_ptr<MemoryRegion>> register_memory(void* address, size_t length,
                                                        uint8_t access) override;
  Result<std::unique_ptr<MemoryWindow>> allocate_window() override;
  uint32_t id() const { return id_; }

 private:
  std::shared_ptr<KeyTable> table_;
  uint32_t id_;
};

class SoftMemoryRegion final : public MemoryRegion {
 public:
  SoftMemoryRegion(std::shared_ptr<KeyTable> table, uint32_t slot, uint32_t key);
  ~SoftMemoryRegion() override;
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return key_; }

 private:
  friend class KeyTable;
  std::shared_ptr<KeyTable> table_;
  uint32_t slot_, key_;
};

class SoftMemoryWindow final : public MemoryWindow {
 public:
  SoftMemoryWindow(std::shared_ptr<KeyTable> table, uint32_t slot);
  ~SoftMemoryWindow() override;
  uint32_t next_rkey() override;

 private:
  friend class KeyTable;
  std::shared_ptr<KeyTable> table_;
  uint32_t slot_;
};

}  // namespace nvmeof::rdma::soft

// One run of the load generator over several queues, driven by a worker thread that waits for its
// jobs. The JavaScript thread can stop it and wait until it has let go of the engines.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "addon/connected_queue.h"
#include "nvmf/bench.h"

namespace nvmeof::addon {

class BenchRun {
 public:
  BenchRun(std::vector<ConnectedQueue> queues, const nvmf::BenchOptions& options)
      : queues_(std::move(queues)), options_(options) {}

  // The worker thread: from creation of the jobs to the merged result.
  Result<void> execute();
  const nvmf::BenchResult& result() const { return result_; }

  // The JavaScript thread.
  bool uses(uint32_t device) const;
  void stop();
  void wait();

 private:
  enum class State : uint8_t { Waiting, Running, Over };

  Result<void> run();
  bool create_jobs(Result<void>& outcome);
  void await_jobs(std::unique_lock<std::mutex>& lock);
  void job_done();

  const std::vector<ConnectedQueue> queues_;
  nvmf::BenchOptions options_;
  nvmf::BenchResult result_;

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::Waiting;
  bool stopping_ = false;
  size_t running_jobs_ = 0;
  std::vector<std::unique_ptr<nvmf::BenchJob>> jobs_;
};

}  // namespace nvmeof::addon

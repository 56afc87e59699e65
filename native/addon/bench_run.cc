// A run of the load generator; see bench_run.h.
#include "addon/bench_run.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace nvmeof::addon {

Result<void> BenchRun::execute() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::Over) return Error{ECANCELED, "the device was closed before the run"};
    state_ = State::Running;
  }
  Result<void> outcome = run();
  {
    // Buffers are deregistered here, while wait() still keeps the engines.
    const std::lock_guard lock(mutex_);
    jobs_.clear();
    state_ = State::Over;
  }
  changed_.notify_all();
  return outcome;
}

Result<void> BenchRun::run() {
  Result<void> outcome;
  if (!create_jobs(outcome)) return outcome;
  {
    const std::lock_guard lock(mutex_);
    running_jobs_ = jobs_.size();
  }
  for (const auto& job : jobs_) {
    while (!job->start(
        [](nvmf::BenchJob*, void* context) { static_cast<BenchRun*>(context)->job_done(); },
        this)) {
      sched_yield();
    }
  }
  std::unique_lock lock(mutex_);
  // A stop that came before the jobs had started.
  if (stopping_) {
    for (const auto& job : jobs_) job->stop();
  }
  await_jobs(lock);
  std::vector<const nvmf::BenchJob*> all;
  for (const auto& job : jobs_) all.push_back(job.get());
  result_ = nvmf::bench_merge(all);
  return outcome;
}

void BenchRun::await_jobs(std::unique_lock<std::mutex>& lock) {
  const auto over = [this] { return running_jobs_ == 0; };
  if (options_.command_timeout_ms == 0) return changed_.wait(lock, over);
  // An eighth late at most, and never busy with looking.
  const std::chrono::milliseconds interval(std::max<uint64_t>(options_.command_timeout_ms / 8, 10));
  while (!changed_.wait_for(lock, interval, over)) {
    lock.unlock();  // reactors take it when a job ends; the jobs stay until this thread is done
    for (const auto& job : jobs_) job->give_up_overdue();
    lock.lock();
  }
}

bool BenchRun::create_jobs(Result<void>& outcome) {
  for (size_t i = 0; i < queues_.size(); i++) {
    nvmf::BenchOptions options = options_;
    options.job_index = static_cast<uint32_t>(i);
    options.job_count = static_cast<uint32_t>(queues_.size());
    const ConnectedQueue& queue = queues_[i];
    auto job = nvmf::BenchJob::create(queue.engine, queue.reactor, queue.id, options);
    const std::lock_guard lock(mutex_);
    if (!job) {
      outcome = job.error();
      return false;
    }
    jobs_.push_back(std::move(*job));
    if (stopping_) {
      outcome = Error{ECANCELED, "the device was closed during the run's preparation"};
      return false;
    }
  }
  return true;
}

void BenchRun::job_done() {
  {
    const std::lock_guard lock(mutex_);
    running_jobs_--;
  }
  changed_.notify_all();
}

bool BenchRun::uses(uint32_t device) const {
  for (const ConnectedQueue& queue : queues_) {
    if (queue.device == device) return true;
  }
  return false;
}

void BenchRun::stop() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::Waiting) state_ = State::Over;
  stopping_ = true;
  for (const auto& job : jobs_) job->stop();
}

void BenchRun::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ == State::Over; });
}

}  // namespace nvmeof::addon

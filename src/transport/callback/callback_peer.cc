#include "transport/callback/callback_peer.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace ckpt::callback {

void Engine::add_region(Descriptor::Region region) {
  const std::lock_guard lock(mutex_);
  const auto after = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const auto& other) { return other.id > region.id; });
  regions_.insert(after, region);
}

void Engine::remove_region(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(regions_, [id](const Descriptor::Region& region) { return region.id == id; });
}

std::vector<Descriptor::Region> Engine::regions() const {
  const std::lock_guard lock(mutex_);
  return regions_;
}

void Engine::add_peer(const std::shared_ptr<PeerQueue>& peer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [](const auto& other) { return other.expired(); });
  peers_.push_back(peer);
}

void Engine::close() {
  closed.store(true);
  std::vector<std::weak_ptr<PeerQueue>> peers;
  {
    const std::lock_guard lock(mutex_);
    peers.swap(peers_);
  }
  for (const auto& weak : peers) {
    if (const auto peer = weak.lock()) peer->close();
  }
}

Status Job::too_late() const {
  return deadline_exceeded(
      concat("read of ", format_bytes(bytes), " from ", label,
             " was not done in time: it may be stopped, or the link too slow"));
}

std::shared_ptr<PeerQueue> PeerQueue::start(std::shared_ptr<Engine> engine, Descriptor descriptor,
                                            std::function<void(const Status&)> on_lost) {
  auto queue =
      std::make_shared<PeerQueue>(std::move(engine), std::move(descriptor), std::move(on_lost));
  queue->thread_ = std::thread([raw = queue.get()] { raw->loop(); });
  return queue;
}

PeerQueue::PeerQueue(std::shared_ptr<Engine> engine, Descriptor descriptor,
                     std::function<void(const Status&)> on_lost)
    : engine_(std::move(engine)),
      descriptor_(std::move(descriptor)),
      remote_{std::string(reinterpret_cast<const char*>(descriptor_.address.data()),
                          descriptor_.address.size()),
              descriptor_.label, descriptor_.instance},
      on_lost_(std::move(on_lost)) {
  for (const Descriptor::Region& region : descriptor_.regions) {
    regions_.push_back({region.id, region.bytes});
  }
}

std::vector<TransportCallbacks::Piece> PeerQueue::pieces(std::span<const ReadRange> ranges) const {
  std::vector<TransportCallbacks::Piece> out;
  out.reserve(ranges.size());
  for (const ReadRange& range : ranges) {
    if (range.bytes == 0) continue;
    const auto region = std::find_if(
        descriptor_.regions.begin(), descriptor_.regions.end(),
        [&](const Descriptor::Region& candidate) { return candidate.id == range.region; });
    out.push_back({range.region, region->address + range.offset, range.destination, range.bytes});
  }
  return out;
}

Status PeerQueue::status() const {
  const std::lock_guard lock(mutex_);
  return why_unusable_;
}

void PeerQueue::push(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      queue_.push_back(std::move(job));
      wake_.notify_one();
      return;
    }
  }
  job->outcome.finish(status());
}

Status PeerQueue::push_signal(std::vector<std::byte> message) {
  const std::lock_guard lock(mutex_);
  if (!why_unusable_.is_ok()) return why_unusable_;
  if (signal_bytes_ + message.size() > kMaxQueuedSignalBytes) {
    return resource_exhausted(concat(remote_.label, " does not take its signals: ",
                                     format_bytes(signal_bytes_), " wait for it"));
  }
  auto job = std::make_shared<Job>();
  job->is_signal = true;
  signal_bytes_ += message.size();
  job->message = std::move(message);
  queue_.push_back(std::move(job));
  wake_.notify_one();
  return Status::ok();
}

bool PeerQueue::make_unusable(const Status& why) {
  std::shared_ptr<Job> running;
  std::deque<std::shared_ptr<Job>> queue;
  {
    const std::lock_guard lock(mutex_);
    if (!why_unusable_.is_ok()) return false;
    why_unusable_ = why;
    running = running_;
    queue = queue_;
  }
  if (running) queue.push_back(std::move(running));
  for (const auto& job : queue) {
    if (!job->is_signal && job->outcome.finish(why)) job->abort.raise(why);
  }
  return true;
}

void PeerQueue::close() {
  make_unusable(aborted(concat("the connection to ", remote_.label, " was closed")));
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wake_.notify_one();
}

void PeerQueue::join() {
  if (thread_.joinable()) thread_.join();
}

void PeerQueue::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;  // closed, and everything reported
    running_ = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    run(*running_);
    lock.lock();
    running_.reset();
  }
}

void PeerQueue::run(Job& job) {
  if (job.is_signal) {
    run_signal(job);
    return;
  }
  if (const Status unusable = status(); !unusable.is_ok()) job.outcome.finish(unusable);
  if (job.deadline.expired()) job.outcome.finish(job.too_late());
  if (job.outcome.begin_receive()) run_read(job);
  report(job);
}

void PeerQueue::run_read(Job& job) {
  const Status status = engine_->callbacks.read(remote_, job.pieces, job.deadline, job.abort);
  const std::uint64_t arrived = status.is_ok() ? job.bytes : 0;
  engine_->counters.bytes_read.fetch_add(arrived);
  job.outcome.end_receive(arrived);
  job.outcome.finish(status);
  if (status.code() == StatusCode::kPeerLost && make_unusable(status) && on_lost_) {
    on_lost_(status);
  }
}

void PeerQueue::run_signal(Job& job) {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    signal_bytes_ -= job.message.size();
    if (why_unusable_.code() == StatusCode::kPeerLost) return;
  }
  status = engine_->callbacks.signal(remote_, job.message);
  if (status.is_ok()) {
    engine_->counters.signals_sent.fetch_add(1);
  } else if (make_unusable(peer_lost(concat(remote_.label, ": ", status.message()))) && on_lost_) {
    on_lost_(this->status());
  }
}

void PeerQueue::report(Job& job) {
  const Status outcome = job.outcome.outcome();
  (outcome.is_ok() ? engine_->counters.reads_done : engine_->counters.reads_failed).fetch_add(1);
  if (job.callback) job.callback(outcome);
}

}  // namespace ckpt::callback

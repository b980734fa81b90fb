#include "transport/ucx/owner.h"

#include <atomic>

#include "base/log.h"
#include "base/strings.h"
#include "transport/read_plan.h"
#include "transport/seal.h"

namespace ckpt::ucx {
namespace {

/// Messages of one reader that may overtake a missing one.
constexpr std::size_t kMaxEarlyMessages = 4096;
/// How long a message may overtake the hello of its connection.
constexpr std::chrono::seconds kHelloPatience{10};
/// How long UCX may take to fail the sends of a connection that was cut; it takes microseconds.
constexpr std::chrono::seconds kCutPatience{5};
/// Spans up to this size may hold words that change while they are served.
constexpr std::uint64_t kMaxWordBytes = 64;

/// A few aligned words, as at a door, are read one by one and in order: each is whole, and what
/// this process wrote before it (how much of a pool is filled, and the pool) is there for the reads
/// that the other side sends upon it.
void append(std::vector<std::byte>& copy, std::byte* from, std::uint64_t bytes) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  const bool words = bytes <= kMaxWordBytes && bytes % kWord == 0 &&
                     reinterpret_cast<std::uintptr_t>(from) % kWord == 0;
  if (!words) {
    copy.insert(copy.end(), from, from + bytes);
    return;
  }
  for (std::uint64_t at = 0; at < bytes; at += kWord) {
    std::atomic_ref<std::uint64_t> shared(*reinterpret_cast<std::uint64_t*>(from + at));
    const std::uint64_t word = shared.load(std::memory_order_acquire);
    const auto* const begin = reinterpret_cast<const std::byte*>(&word);
    copy.insert(copy.end(), begin, begin + kWord);
  }
}

}  // namespace

Result<std::uint64_t> Owner::add_region(void* data, std::uint64_t bytes) {
  auto region = std::make_shared<Region>();
  region->data = static_cast<std::byte*>(data);
  region->bytes = bytes;
  CKPT_ASSIGN_OR_RETURN(region->pins, context_.pin(data, bytes));
  const std::lock_guard lock(mutex_);
  region->id = next_region_++;
  regions_.emplace(region->id, region);
  return region->id;
}

void Owner::close_region(std::uint64_t id, Deadline deadline) {
  std::shared_ptr<Region> region;
  std::vector<std::uint64_t> slow;
  {
    std::unique_lock lock(mutex_);
    const auto found = regions_.find(id);
    if (found == regions_.end()) return;
    region = found->second;
    region->closing = true;
    const auto unread = [&] { return region->serving_by_reader.empty(); };
    if (!quiet_.wait_until(lock, deadline.when(), unread)) {
      for (const auto& [connection, count] : region->serving_by_reader) slow.push_back(connection);
    }
  }
  if (!slow.empty()) {
    progress_.run([&] {
      for (const std::uint64_t connection : slow) drop(connection);
    });
    std::unique_lock lock(mutex_);
    const auto unread = [&] { return region->serving_by_reader.empty(); };
    if (!quiet_.wait_for(lock, kCutPatience, unread)) {
      log_error("transport: ucx did not end its sends out of region ", id,
                " after their connections were cut");
    }
  }
  std::vector<ucp_mem*> pins;
  {
    const std::lock_guard lock(mutex_);
    pins.swap(region->pins);  // once, if two threads close
    regions_.erase(id);
  }
  context_.unpin(pins);
}

std::vector<Descriptor::Region> Owner::regions() const {
  const std::lock_guard lock(mutex_);
  std::vector<Descriptor::Region> out;
  for (const auto& [id, region] : regions_) {
    if (!region->closing) out.push_back({id, region->bytes, 0});
  }
  return out;
}

void Owner::on_message(Message message) {
  if (closed_) return;
  auto found = readers_.find(message.connection);
  if (found == readers_.end()) {
    auto reader = std::make_unique<Reader>();
    reader->connection = message.connection;
    found = readers_.emplace(message.connection, std::move(reader)).first;
    // Leftovers of a connection that was cut have no hello behind them.
    progress_.call_at(Deadline::after(kHelloPatience), [this, connection = message.connection] {
      const auto silent = readers_.find(connection);
      if (silent != readers_.end() && silent->second->endpoint == nullptr) drop(connection);
    });
  }
  Reader& reader = *found->second;
  if (message.sequence < reader.next_sequence || reader.early.size() >= kMaxEarlyMessages) {
    drop(message.connection);
    return;
  }
  reader.early.emplace(message.sequence, std::move(message));
  const std::uint64_t connection = found->first;
  while (true) {
    // Each message may end the connection.
    found = readers_.find(connection);
    if (found == readers_.end()) return;
    Reader& next = *found->second;
    if (next.early.empty() || next.early.begin()->first != next.next_sequence) return;
    const Message ready = std::move(next.early.begin()->second);
    next.early.erase(next.early.begin());
    ++next.next_sequence;
    handle(next, ready);
  }
}

void Owner::handle(Reader& reader, const Message& message) {
  if (const auto* hello = std::get_if<Hello>(&message.body)) {
    if (reader.endpoint) {
      drop(reader.connection);  // nobody greets twice
    } else {
      greet(reader, *hello);
    }
  } else if (std::holds_alternative<Bye>(message.body) && reader.endpoint) {
    refuse(reader, 0, aborted("the reader has said goodbye"));
  } else if (reader.endpoint == nullptr) {
    drop(reader.connection);
  } else if (const auto* request = std::get_if<Request>(&message.body)) {
    serve(reader, *request);
  } else if (const auto* signal = std::get_if<Signal>(&message.body)) {
    deliver(reader, signal->message);
  }
}

Status Owner::check_hello(const Hello& hello) const {
  if (hello.version != kMessageVersion) {
    return protocol_error(concat("it speaks transport version ", kMessageVersion, ", not ",
                                 hello.version, ": run the same release on both sides"));
  }
  if (hello.owner_instance != identity_.instance) {
    return failed_precondition(
        "it was restarted since the metas were made: gather or load them anew");
  }
  if (hello.address_seal != seal_of(hello.address, hello.owner_instance)) {
    return protocol_error("the greeting has arrived damaged");
  }
  return Status::ok();
}

void Owner::greet(Reader& reader, const Hello& hello) {
  const std::uint64_t connection = reader.connection;
  reader.instance = hello.instance;
  reader.label = hello.label;
  Result<std::unique_ptr<Endpoint>> endpoint =
      Endpoint::connect(progress_, progress_.main_worker(), hello.address,
                        [this, connection](const std::string& why) {
                          log_debug("transport: reader lost: ", why);
                          drop(connection);
                        });
  if (!endpoint.is_ok()) {
    log_warning("transport: cannot answer ", hello.label, ": ", endpoint.status().message());
    drop(connection);
    return;
  }
  reader.endpoint = std::move(endpoint).value();
}

Result<std::vector<std::shared_ptr<Owner::Region>>> Owner::check(const Request& request) const {
  if (request.spans.empty()) return protocol_error("empty transport request");
  std::vector<std::shared_ptr<Region>> regions;
  std::uint64_t total = 0;
  for (const Request::Span& span : request.spans) {
    const auto found = regions_.find(span.region);
    if (found == regions_.end() || found->second->closing) {
      return not_found(concat("its memory region ", span.region, " is no longer registered"));
    }
    const Region& region = *found->second;
    if (span.offset > region.bytes || span.bytes > region.bytes - span.offset) {
      return invalid_argument(concat(span.bytes, " bytes at offset ", span.offset,
                                     " end behind its region ", span.region, " of ", region.bytes,
                                     " bytes"));
    }
    const std::uint64_t limit = request.spans.size() == 1 ? kReadGrain : kGatherBytes;
    if (span.bytes > limit - total) return protocol_error("transport request for too much at once");
    total += span.bytes;
    regions.push_back(found->second);
  }
  return regions;
}

void Owner::serve(Reader& reader, const Request& request) {
  std::unique_lock lock(mutex_);
  auto regions = check(request);
  if (!regions.is_ok()) {
    lock.unlock();
    counters_.reads_refused.fetch_add(1);
    refuse(reader, request.read, regions.status());
    return;
  }
  if (request.spans.size() == 1 && request.spans[0].bytes > kGatherPieceBytes) {
    ++(*regions)[0]->serving_by_reader[reader.connection];
    lock.unlock();
    serve_directly(reader, request, std::move((*regions)[0]));
    return;
  }
  std::vector<std::byte> copy;
  for (std::size_t i = 0; i < regions->size(); ++i) {
    append(copy, (*regions)[i]->data + request.spans[i].offset, request.spans[i].bytes);
  }
  lock.unlock();
  counters_.bytes_served.fetch_add(copy.size());
  reader.endpoint->send_copy({reader.connection, request.read, request.request, 1},
                             std::move(copy));
}

void Owner::serve_directly(Reader& reader, const Request& request, std::shared_ptr<Region> region) {
  const std::uint64_t connection = reader.connection;
  const Request::Span& span = request.spans[0];
  const std::byte* data = region->data + span.offset;
  // Eager data is copied while the region counts as being served, so its arrival says everything. A
  // Served would stand behind all data asked for by then, and reads would end a window at a time.
  const std::uint32_t snapshot = span.bytes <= kEagerBytes ? 1 : 0;
  reader.endpoint->send_data({connection, request.read, request.request, snapshot}, data,
                             span.bytes, [this, connection, request, region](bool sent) {
                               finish_serving(connection, request, *region, sent);
                             });
}

void Owner::finish_serving(std::uint64_t connection, const Request& request, Region& region,
                           bool sent) {
  const auto reader = readers_.find(connection);
  if (sent && reader != readers_.end()) {
    counters_.bytes_served.fetch_add(request.spans[0].bytes);
    if (request.spans[0].bytes > kEagerBytes) {
      reader->second->endpoint->send({connection, 0, Served{request.read, request.request}});
    }
  }
  const std::lock_guard lock(mutex_);
  const auto count = region.serving_by_reader.find(connection);
  if (--count->second == 0) region.serving_by_reader.erase(count);
  quiet_.notify_all();
}

void Owner::refuse(Reader& reader, std::uint64_t read, const Status& why) {
  reader.endpoint->send({reader.connection, 0, Refusal{read, why.code(), why.message()}});
}

void Owner::deliver(const Reader& reader, const std::vector<std::byte>& message) {
  counters_.signals_received.fetch_add(1);
  inbox_.deliver(reader.label, reader.instance, message);
}

void Owner::set_signal_handler(Transport::SignalHandler handler) {
  // On the progress thread, so that kept and new signals stay in order.
  progress_.run([&] { inbox_.set_handler(std::move(handler)); });
}

void Owner::close() {
  // Who says hello while the transport ends must not get an endpoint that outlives the progress
  // thread.
  closed_ = true;
  readers_.clear();
}

}  // namespace ckpt::ucx

// The side of a process that serves its memory: regions, and the readers connected to it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "transport/counters.h"
#include "transport/descriptor.h"
#include "transport/signal_inbox.h"
#include "transport/transport.h"
#include "transport/ucx/context.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/message.h"
#include "transport/ucx/progress.h"

namespace ckpt::ucx {

/// What both sides of a transport say of themselves.
struct Identity {
  std::string instance;
  std::string label;
};

class Owner {
 public:
  Owner(Context& context, Progress& progress, const Identity& identity, TransportCounters& counters)
      : context_(context), progress_(progress), identity_(identity), counters_(counters) {}

  // Any thread.
  Result<std::uint64_t> add_region(void* data, std::uint64_t bytes);
  /// As MemoryRegion::close.
  void close_region(std::uint64_t id, Deadline deadline);
  std::vector<Descriptor::Region> regions() const;
  void set_signal_handler(Transport::SignalHandler handler);

  // Progress thread.
  /// Whether a greeting was meant for this owner, by somebody who has its descriptor, and has
  /// arrived as it was sent: only then is the address in it fit for UCX, which trusts it.
  Status check_hello(const Hello& hello) const;
  /// A message of a reader; a greeting that check_hello has accepted.
  void on_message(Message message);
  /// Cuts all readers and takes no new ones.
  void close();

 private:
  struct Region {
    std::uint64_t id;
    std::byte* data;
    std::uint64_t bytes;
    std::vector<ucp_mem*> pins;
    bool closing = false;                            // guarded by mutex_
    std::map<std::uint64_t, int> serving_by_reader;  // of connections; guarded by mutex_
  };
  struct Reader {
    std::uint64_t connection;
    std::string instance, label;
    std::unique_ptr<Endpoint> endpoint;
    std::uint64_t next_sequence = 0;
    std::map<std::uint64_t, Message> early;  // messages that overtook others
  };

  void greet(Reader& reader, const Hello& hello);
  void handle(Reader& reader, const Message& message);
  void serve(Reader& reader, const Request& request);
  /// The regions of the request's spans. With mutex_ held, so that none closes before it is in use.
  Result<std::vector<std::shared_ptr<Region>>> check(const Request& request) const;
  void serve_directly(Reader& reader, const Request& request, std::shared_ptr<Region> region);
  void finish_serving(std::uint64_t connection, const Request& request, Region& region, bool sent);
  void refuse(Reader& reader, std::uint64_t read, const Status& why);
  void deliver(const Reader& reader, const std::vector<std::byte>& message);
  void drop(std::uint64_t connection) { readers_.erase(connection); }

  Context& context_;
  Progress& progress_;
  const Identity& identity_;
  TransportCounters& counters_;

  mutable std::mutex mutex_;
  std::condition_variable quiet_;                             // a region has one reader less
  std::uint64_t next_region_ = 1;                             // guarded by mutex_
  std::map<std::uint64_t, std::shared_ptr<Region>> regions_;  // guarded by mutex_

  // Of the progress thread.
  std::map<std::uint64_t, std::unique_ptr<Reader>> readers_;  // by connection
  bool closed_ = false;
  SignalInbox inbox_;
};

}  // namespace ckpt::ucx

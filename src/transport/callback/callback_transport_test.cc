// What only an engine that does not keep its word, or keeps it late, does.
#include "transport/callback/callback_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <set>
#include <vector>

namespace ckpt {
namespace {

Deadline soon() { return Deadline::after_seconds(30); }

/// An engine that writes when it is let, and not before, whatever deadline and abort say.
class LateEngine : public ::testing::Test {
 protected:
  LateEngine() {
    TransportCallbacks callbacks;
    callbacks.address = "here";
    callbacks.register_memory = [](std::uint64_t, void*, std::uint64_t) { return Status(); };
    callbacks.deregister_memory = [](std::uint64_t, void*, Deadline) {};
    callbacks.read = [this](const TransportCallbacks::Remote&,
                            std::span<const TransportCallbacks::Piece> pieces, Deadline,
                            AbortSignal&) {
      gate_.get_future().wait();
      for (const auto& piece : pieces) {
        std::memcpy(piece.destination, reinterpret_cast<const void*>(piece.remote_address),
                    piece.bytes);
      }
      return Status();
    };
    callbacks.register_destination = [this](void* data, std::uint64_t) {
      if (full_) return resource_exhausted("no room");
      destinations_.insert(data);
      return Status();
    };
    callbacks.deregister_destination = [this](void* data) { destinations_.erase(data); };
    transport_ = make_callback_transport("itself", std::move(callbacks));
    region_ = transport_->register_memory(source_.data(), source_.size()).value();
    peer_ =
        transport_->connect(transport_->descriptor().value(), {.label = "rank 3"}, soon()).value();
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(1000, std::byte{3});
  std::vector<std::byte> destination_ = std::vector<std::byte>(1000);
  std::promise<void> gate_;
  bool full_ = false;
  std::set<void*> destinations_;
  std::unique_ptr<CallbackTransport> transport_;
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<Peer> peer_;
};

TEST_F(LateEngine, WhatArrivesBehindTheDeadlineKeepsItsDestinationUntilThen) {
  const ReadRange range{region_->id(), 0, destination_.data(), destination_.size()};
  auto read = transport_->read(*peer_, {&range, 1}, soon());
  const Status late = read->wait(Deadline::after_seconds(0.02));
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.to_string();
  EXPECT_TRUE(read->done());
  EXPECT_FALSE(read->destination_released());
  std::atomic<bool> freed{false};
  auto freeing = std::async(std::launch::async, [&] {
    read.reset();
    freed = true;
  });
  EXPECT_FALSE(freed);
  gate_.set_value();
  freeing.get();
  // From here on the memory is the caller's.
  EXPECT_EQ(destination_, source_);
}

TEST_F(LateEngine, DestinationsEndWithTheirObjectsAndFailuresRegisterNothing) {
  gate_.set_value();
  const auto device = make_host_device();
  EXPECT_TRUE(transport_->can_read_into(DeviceKind::kCuda).is_ok());
  auto destination =
      transport_->register_destination(*device, destination_.data(), destination_.size());
  ASSERT_TRUE(destination.is_ok()) << destination.status().to_string();
  EXPECT_EQ(destinations_.size(), 1u);
  destination->reset();
  EXPECT_TRUE(destinations_.empty());
  full_ = true;
  destination = transport_->register_destination(*device, destination_.data(), 1000);
  EXPECT_EQ(destination.status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(destinations_.empty());
}

TEST(HostOnly, ReadsIntoHostMemoryOnlyUnlessItsFunctionsSayOtherwise) {
  TransportCallbacks callbacks;
  const auto transport = make_callback_transport("itself", std::move(callbacks));
  const Status status = transport->can_read_into(DeviceKind::kCuda);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  const auto device = make_host_device();
  EXPECT_EQ(transport->register_destination(*device, nullptr, 0).status().code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace ckpt

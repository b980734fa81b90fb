#include "parameter_server/owner_fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "parameter_server/published_pool.h"
#include "transport/testing/fake_network.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;

Deadline soon() { return Deadline::after_seconds(30); }

/// Owners with doors, and a reader.
class OwnersOfAnotherJob : public ::testing::Test {
 protected:
  struct Owner {
    std::shared_ptr<Transport> transport;
    DoorWords words;
    std::unique_ptr<MemoryRegion> region;
    std::unique_ptr<Peer> peer;

    Door door() const { return {peer.get(), region->id(), 1}; }
  };

  std::unique_ptr<Owner> make_owner(const std::string& label, std::uint64_t filled) {
    auto owner = std::make_unique<Owner>();
    owner->transport = network_.make_transport(label);
    owner->words.filled = filled;
    owner->region = *owner->transport->register_memory(&owner->words, sizeof(owner->words));
    owner->peer = *reader_->connect(*owner->transport->descriptor(), {.label = label}, soon());
    return owner;
  }

  testing::FakeNetwork network_;
  std::shared_ptr<Transport> reader_ = network_.make_transport("reader");
  AbortSignal abort_;
};

TEST_F(OwnersOfAnotherJob, OneThatStopsBeforeTheFirstLookIsNotWaitedForLong) {
  const auto stopped = make_owner("rank 1", 0), whole = make_owner("rank 2", kWhollyFilled);
  network_.stop(*stopped->transport);
  const auto fill = OwnerFill::watch(*reader_, {stopped->door(), whole->door()}, soon(), abort_, {},
                                     std::chrono::milliseconds(50));
  ASSERT_TRUE(fill.is_ok()) << fill.status().to_string();
  EXPECT_EQ((*fill)->shown(0).code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT((*fill)->shown(0).message(), HasSubstr("rank 1"));
  EXPECT_TRUE((*fill)->was_whole(0)) << "nobody follows it";
  network_.resume(*stopped->transport);
}

TEST_F(OwnersOfAnotherJob, OneThatEndsBeforeTheFirstLookDoesNotKeepTheOthersFromBeingFollowed) {
  const auto gone = make_owner("rank 1", 0), filling = make_owner("rank 2", 5);
  network_.die(*gone->transport);
  std::promise<Status> lost;
  const auto fill = OwnerFill::watch(*reader_, {gone->door(), filling->door()}, soon(), abort_,
                                     [&](const Status& status) { lost.set_value(status); });
  ASSERT_TRUE(fill.is_ok()) << fill.status().to_string();
  EXPECT_EQ((*fill)->shown(0).code(), StatusCode::kPeerLost) << (*fill)->shown(0).to_string();
  EXPECT_TRUE((*fill)->shown(1).is_ok());
  EXPECT_FALSE((*fill)->was_whole(1));
  EXPECT_EQ((*fill)->filled().value(1), 5u);
  network_.die(*filling->transport);
  EXPECT_THAT(lost.get_future().get().message(), HasSubstr("rank 2"));
}

}  // namespace
}  // namespace ckpt

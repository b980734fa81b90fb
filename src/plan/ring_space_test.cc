#include "plan/ring_space.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

TEST(RingSpace, PlacesBucketsOneBehindTheOther) {
  RingSpace space(1000, 300);
  EXPECT_EQ(space.place(300).offset, 0u);
  EXPECT_EQ(space.place(300).offset, 300u);
  EXPECT_EQ(space.place(300).offset, 600u);
  const RingPlace fourth = space.place(200);
  EXPECT_EQ(fourth.offset, 0u);
  EXPECT_EQ(fourth.reuse_after, 0);
  const RingPlace fifth = space.place(300);
  EXPECT_EQ(fifth.offset, 200u);
  EXPECT_EQ(fifth.reuse_after, 1) << "it lies over the rest of the first and most of the second";
}

TEST(RingSpace, KeepsTwoBucketsWhereSmallOnesWouldGetInTheWay) {
  RingSpace space(100, 50);
  EXPECT_EQ(space.place(30).offset, 0u);
  EXPECT_EQ(space.place(40).offset, 50u) << "at 30 the next one would have no room";
  const RingPlace third = space.place(40);
  EXPECT_EQ(third.offset, 0u);
  EXPECT_EQ(third.reuse_after, 0);
}

TEST(RingSpace, RemembersWhatLaterRoundsDidNotCover) {
  RingSpace space(100, 30);
  EXPECT_EQ(space.place(30).offset, 0u);
  EXPECT_EQ(space.place(30).offset, 30u);
  EXPECT_EQ(space.place(30).offset, 60u);
  EXPECT_EQ(space.place(20).reuse_after, 0);  // 0..20
  EXPECT_EQ(space.place(80).offset, 20u);     // larger than a bucket: 20..100
  EXPECT_EQ(space.place(30).reuse_after, 4);  // 0..30
}

TEST(RingSpace, LetsABucketWithoutBytesInAtOnce) {
  RingSpace space(100, 50);
  (void)space.place(50);
  (void)space.place(50);
  EXPECT_EQ(space.place(0).reuse_after, -1);
  EXPECT_EQ(space.place(50).reuse_after, 0);
}

}  // namespace
}  // namespace ckpt

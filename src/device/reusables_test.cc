#include "device/reusables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace ckpt {
namespace {

struct Table {
  Table(std::atomic<int>& count, std::size_t size) : alive(count), rows(size) { ++alive; }
  ~Table() { --alive; }

  std::atomic<int>& alive;
  std::size_t rows;
};

class ReusablesTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Table>> take(std::size_t rows) {
    return tables_.take([&](const Table& table) { return table.rows >= rows; },
                        [](const Table& table) { return table.rows; },
                        [&]() -> Result<std::unique_ptr<Table>> {
                          if (rows == 0) return resource_exhausted("no memory for a table");
                          return std::make_unique<Table>(alive_, rows);
                        });
  }

  std::atomic<int> alive_{0};
  Reusables<Table> tables_;
};

TEST_F(ReusablesTest, ASecondUserGetsWhatTheFirstHasGivenBack) {
  auto first = *take(10);
  const Table* const thing = first.get();
  tables_.give_back(std::move(first));
  EXPECT_EQ(take(10)->get(), thing);
  EXPECT_EQ(tables_.made(), 1u);
}

TEST_F(ReusablesTest, TwoUsersAtOnceGetOneEach) {
  auto first = *take(10), second = *take(10);
  EXPECT_NE(first.get(), second.get());
  EXPECT_EQ(tables_.made(), 2u);
}

TEST_F(ReusablesTest, TheSmallestThatFitsIsTaken) {
  auto large = *take(100), small = *take(10), medium = *take(50);
  const Table* const wanted = medium.get();
  tables_.give_back(std::move(large));
  tables_.give_back(std::move(medium));
  tables_.give_back(std::move(small));
  EXPECT_EQ(take(20)->get(), wanted);
  EXPECT_EQ((*take(200))->rows, 200u);
}

TEST_F(ReusablesTest, WhatIsNotGivenBackIsGoneAndMadeAnew) {
  take(10)->reset();
  EXPECT_EQ(alive_, 0);
  EXPECT_TRUE(take(10).is_ok());
  EXPECT_EQ(tables_.made(), 2u);
}

TEST_F(ReusablesTest, AFailureToMakeOneIsTheUsers) {
  EXPECT_EQ(take(0).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(ReusablesTest, TheEndDestroysThem) {
  tables_.give_back(*take(10));
  EXPECT_EQ(alive_, 1);
  tables_.clear();
  EXPECT_EQ(alive_, 0);
}

TEST_F(ReusablesTest, ManyThreadsNeverShareOne) {
  std::atomic<int> mistakes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        auto table = *take(1);
        if (++table->rows != 2) ++mistakes;
        --table->rows;
        tables_.give_back(std::move(table));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mistakes, 0);
  EXPECT_LE(tables_.made(), 4u);
}

}  // namespace
}  // namespace ckpt

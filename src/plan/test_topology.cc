#include "plan/test_topology.h"

#include <gtest/gtest.h>

#include "base/strings.h"
#include "plan/weights.h"

namespace ckpt::testing {

Catalog make_catalog(const std::vector<std::vector<TestTensor>>& held, std::uint64_t pool_step) {
  auto metas = std::make_shared<Metas>();
  metas->checkpoint_name = "test";
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    InstanceData instance;
    instance.rank = static_cast<int>(rank);
    instance.epoch = 1;
    std::vector<TensorInfo> tensors;
    std::uint64_t offset = 0;
    for (const TestTensor& tensor : held[rank]) {
      tensors.push_back(
          *make_tensor_info(tensor.name, DType::kU8, {static_cast<std::int64_t>(tensor.bytes)}));
      instance.offsets.push_back(offset);
      instance.digests.push_back(tensor.bytes);
      offset += (tensor.bytes + pool_step - 1) / pool_step * pool_step;
    }
    auto layout = std::make_shared<Layout>(Layout::make(std::move(tensors)));
    instance.layout_hash = layout->hash;
    metas->ranks.push_back({std::move(layout), std::move(instance)});
  }
  Result<Catalog> catalog = Catalog::build(std::move(metas));
  EXPECT_TRUE(catalog.is_ok()) << catalog.status().to_string();
  return std::move(catalog).value();
}

std::vector<PlanRank> make_ranks(int hosts, int ranks_per_host) {
  std::vector<PlanRank> ranks;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    ranks.push_back({.host = rank / ranks_per_host, .recipient = true});
  }
  return ranks;
}

std::string name_in_group(int group, int member) {
  return concat("model.layers.0.mlp.experts.", group, ".w", member, ".weight");
}

Topology random_topology(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };

  PlanOptions options;
  options.chunk_bytes = kRingAlignment << below(4);
  options.cross_chunk_bytes = std::max(options.chunk_bytes >> below(4), kRingAlignment);
  options.staging_chunks = static_cast<int>(2 + below(3));
  options.sharing = below(2) ? RingSharing::kPerHost : RingSharing::kPerRank;
  options.serial = below(5) == 0;
  options.ring_bytes = 2048 + below(16) * 1024 + below(2) * below(256);
  options.bucket_bytes = options.serial ? options.ring_bytes : options.ring_bytes / (2 + below(3));
  if (options.serial || below(4) == 0) options.staging_chunks = 0;

  // Ranks of a host need not be neighbours.
  const auto hosts = static_cast<int>(1 + below(4));
  std::vector<PlanRank> ranks;
  std::vector<int> number_of(hosts, -1);
  int next_host = 0;
  const std::size_t world_size = hosts + below(8);
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    int& number = number_of[below(hosts)];
    if (number < 0) number = next_host++;
    ranks.push_back({number, false, static_cast<double>(1 + below(4)) / 2});
  }
  const std::uint64_t percent = below(3) ? 100 : 40;
  for (PlanRank& rank : ranks) rank.recipient = below(100) < percent;
  ranks[below(ranks.size())].recipient = true;

  // Groups dealt in order, some of them to several ranks; some ranks have nothing.
  std::vector<std::vector<TestTensor>> held(world_size - below(2) * (world_size > 1));
  const std::uint64_t largest = options.ring_bytes / kRingAlignment * kRingAlignment;
  const auto groups = static_cast<int>(below(60));
  const std::uint64_t replicated_percent = below(2) * below(100);
  for (int group = 0; group < groups; ++group) {
    std::vector<TestTensor> tensors;
    for (int member = static_cast<int>(below(4)); member >= 0; --member) {
      const std::uint64_t kind = below(20);
      const std::uint64_t bytes = kind == 0   ? 0
                                  : kind == 1 ? 1 + below(largest)
                                              : 1 + below(options.bucket_bytes / 4 + 1);
      tensors.push_back({name_in_group(group, member), bytes});
    }
    const std::size_t first = below(held.size());
    for (std::size_t rank = 0; rank < held.size(); ++rank) {
      if (rank != first && below(100) >= replicated_percent) continue;
      held[rank].insert(held[rank].end(), tensors.begin(), tensors.end());
    }
  }
  const std::uint64_t pool_step = below(3) ? kRingAlignment : 1;
  std::string text =
      concat("seed ", seed, ": ", ranks.size(), " ranks on ", next_host, " hosts, ring ",
             options.ring_bytes, ", bucket ", options.bucket_bytes, ", chunk ", options.chunk_bytes,
             options.serial ? ", serial" : "", ", staging ", options.staging_chunks,
             options.sharing == RingSharing::kPerHost ? ", per host" : ", per rank");
  return {make_catalog(held, pool_step), std::move(ranks), options, std::move(text)};
}

Topology random_p2p_topology(std::uint64_t seed, int receiving_hosts) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  constexpr double kSpeeds[] = {25, 50, 100, 200};

  std::vector<PlanRank> ranks;
  const auto add_host = [&](int host, bool recipients) {
    const auto devices = static_cast<int>(1 + below(4));
    const auto per_device = static_cast<int>(1 + below(2));
    double speed = kSpeeds[below(4)];
    for (int device = 0; device < devices; ++device) {
      if (below(3) == 0) speed = kSpeeds[below(4)];
      for (int i = 0; i < per_device; ++i) ranks.push_back({host, recipients, speed, device});
    }
  };
  for (int host = 0; host < receiving_hosts; ++host) add_host(host, true);
  const std::size_t first_owner = ranks.size();
  const auto owner_hosts = static_cast<int>(1 + below(3));
  for (int host = 0; host < owner_hosts; ++host) add_host(receiving_hosts + host, false);
  const std::size_t owners = ranks.size() - first_owner;

  // Replicas lie on sets of owners that overlap, as instances of different sizes leave them.
  std::vector<std::vector<std::size_t>> sets;
  for (std::uint64_t i = 0; i <= below(4); ++i) {
    std::vector<std::size_t> members = {below(owners)};
    for (std::size_t owner = 0; owner < owners; ++owner) {
      if (owner != members[0] && below(3) == 0) members.push_back(owner);
    }
    sets.push_back(std::move(members));
  }
  PlanOptions options;
  options.chunk_bytes = 16 << 10;
  options.cross_chunk_bytes = 4 << 10;
  options.bucket_bytes = 256 << 10;
  options.ring_bytes = 2 * options.bucket_bytes;
  options.staging_chunks = 4;
  options.sharing = below(2) ? RingSharing::kPerHost : RingSharing::kPerRank;

  // Slow devices get their eight buckets, too, when the whole is that many times as large.
  double sum = 0, slowest = 200;
  for (const PlanRank& rank : ranks) {
    sum += rank.bandwidth;
    slowest = std::min(slowest, rank.bandwidth);
  }
  const auto total =
      static_cast<std::uint64_t>(8 * static_cast<double>(options.bucket_bytes) * sum / slowest);
  const std::uint64_t largest = options.bucket_bytes / (8 << below(3));
  std::vector<std::vector<TestTensor>> held(ranks.size());
  std::uint64_t bytes = 0;
  for (int group = 0; bytes < total; ++group) {
    const std::vector<std::size_t>& set = sets[below(sets.size())];
    std::vector<TestTensor> tensors;
    for (std::uint64_t member = 0; member <= below(3); ++member) {
      tensors.push_back({name_in_group(group, static_cast<int>(member)), 1 + below(largest)});
      bytes += tensors.back().bytes;
    }
    // Without replicas: split over the set.
    const bool replicated = below(4) != 0;
    const std::size_t only = below(set.size());
    for (std::size_t i = 0; i < set.size(); ++i) {
      if (!replicated && i != only) continue;
      auto& owner = held[first_owner + set[i]];
      owner.insert(owner.end(), tensors.begin(), tensors.end());
    }
  }
  std::string text = concat("seed ", seed, ": ", first_owner, " recipients on ", receiving_hosts,
                            " hosts, ", owners, " owners on ", owner_hosts, " hosts, ", sets.size(),
                            " sets, ", bytes >> 10, " KiB");
  return {make_catalog(held), std::move(ranks), options, std::move(text)};
}

}  // namespace ckpt::testing

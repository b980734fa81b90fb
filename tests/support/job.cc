#include "support/job.h"

#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "base/host.h"
#include "base/strings.h"
#include "checkpoint/split.h"
#include "parameter_server/pass_setup.h"

namespace ckpt::testing {
namespace {

std::vector<std::byte> random_bytes(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::mt19937_64 random(seed);
  std::uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  for (; i < count; ++i) bytes[i] = std::byte(random());
  return bytes;
}

}  // namespace

OwnedTensor random_tensor(const std::string& name, std::uint64_t bytes, std::uint64_t seed) {
  return {*make_tensor_info(name, DType::kU8, {static_cast<std::int64_t>(bytes)}),
          random_bytes(bytes, seed)};
}

Checkpoint small_model(int layers, std::uint64_t seed) {
  Checkpoint checkpoint;
  const auto add = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    const TensorInfo info = *make_tensor_info(name, dtype, std::move(shape));
    checkpoint[name] = {info, random_bytes(info.bytes, ++seed * 7919)};
  };
  add("model.embed_tokens.weight", DType::kBF16, {1000, 64});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    for (const char* name : {"q", "k", "v", "o"}) {
      add(concat(prefix, "self_attn.", name, "_proj.weight"), DType::kF8E4M3, {64 + layer, 64});
      add(concat(prefix, "self_attn.", name, "_proj.weight_scale_inv"), DType::kF32, {1, 1});
    }
    for (const char* name : {"gate", "up", "down"}) {
      add(concat(prefix, "mlp.", name, "_proj.weight"), DType::kBF16, {192, 64});
    }
    add(concat(prefix, "input_layernorm.weight"), DType::kBF16, {64});
  }
  add("model.norm.weight", DType::kF32, {64});
  add("odd", DType::kU8, {1237});
  add("empty", DType::kI64, {0, 5});
  add("scalar", DType::kF64, {});
  return checkpoint;
}

Result<std::span<std::byte>> TestLoader::destination(const TensorInfo& tensor) {
  if (tensor.name == refuse_tensor)
    return invalid_argument(concat("no parameter named ", tensor.name));
  if (seconds_per_tensor > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_per_tensor));
  std::vector<std::byte>& bytes = memory[tensor.name];
  bytes.resize(tensor.bytes);
  if (through_load) return std::span<std::byte>();
  return std::span(bytes);
}

Status TestLoader::load(std::span<const TensorView> tensors) {
  for (const TensorView& tensor : tensors) {
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % 256 != 0)
      return internal_error("a tensor is not aligned");
    memory[tensor.info->name].assign(tensor.data, tensor.data + tensor.info->bytes);
  }
  return Status();
}

Status TestLoader::finish() {
  ++finished;
  return finish_error.empty() ? Status() : internal_error(finish_error);
}

std::string TestLoader::difference(const Checkpoint& expected) const {
  if (memory.size() != expected.size())
    return concat(memory.size(), " tensors, expected ", expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto at = memory.find(name);
    if (at == memory.end()) return concat("no ", name);
    if (at->second != tensor.bytes) return concat(name, " differs");
  }
  return {};
}

Status TestEngine::update(const std::map<std::string, std::string>& addresses, int passes) {
  if (addresses.size() != loaders.size()) {
    return invalid_argument(
        concat(addresses.size(), " addresses for ", loaders.size(), " workers"));
  }
  std::vector<Status> statuses(loaders.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < loaders.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto address = addresses.find(concat("CPU-", i));
      if (address == addresses.end()) {
        statuses[i] = not_found(concat("no address for worker ", i));
        return;
      }
      for (int pass = 0; pass < passes && statuses[i].is_ok(); ++pass) {
        statuses[i] = update_weights(address->second, loaders[i], options).status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    if (!statuses[i].is_ok()) return statuses[i].with_context(concat("worker ", i));
  }
  return Status();
}

Job::Job(JobOptions options) : options_(std::move(options)) {
  ParameterServerOptions base;
  base.world_size = options_.ranks;
  // A hub of the test's own: the kernel chooses its port, so that no other test can take it in
  // between.
  HubOptions hub;
  hub.bind_host = "127.0.0.1";
  auto started = Hub::start(hub);
  if (!started) throw std::runtime_error("no hub: " + started.status().to_string());
  hub_ = std::move(*started);
  base.rendezvous = hub_->address().to_string();
  base.external_hub = true;
  base.job = name_ = "test-" + random_id();
  base.device = "host";
  base.collective = options_.collective;
  base.load_threads = 1;
  base.join_timeout_seconds = 30;
  base.late_worker_seconds = 0.5;
  base.collective_timeout_seconds = 60;
  base.ring_bytes = options_.sizes.ring;
  base.bucket_bytes = options_.sizes.bucket;
  base.chunk_bytes = options_.sizes.chunk;
  servers_.resize(static_cast<std::size_t>(options_.ranks));
  std::vector<std::thread> threads;
  std::vector<Status> statuses(servers_.size());
  for (int rank = 0; rank < options_.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ParameterServerOptions mine = base;
      mine.rank = rank;
      if (!options_.host_ids.empty())
        mine.host_id = options_.host_ids[static_cast<std::size_t>(rank)];
      if (options_.adjust) options_.adjust(mine);
      auto server = ParameterServer::create(std::move(mine));
      statuses[static_cast<std::size_t>(rank)] = server.status();
      if (server.is_ok()) servers_[static_cast<std::size_t>(rank)] = std::move(*server);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    if (!status.is_ok()) throw std::runtime_error("a rank could not join: " + status.to_string());
  }
}

Job::~Job() {
  // All at once: rank 0 waits for the others.
  std::vector<std::thread> threads;
  for (auto& server : servers_) threads.emplace_back([&server] { server.reset(); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::string> Job::shared_objects() const {
  std::set<std::string> prefixes;
  for (const std::string& id : options_.host_ids) prefixes.insert(shared_memory_prefix(name_, id));
  if (prefixes.empty()) prefixes.insert(shared_memory_prefix(name_, host_id()));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    for (const std::string& prefix : prefixes) {
      if (name.starts_with(prefix)) names.push_back(name);
    }
  }
  return names;
}

std::vector<Status> Job::run(const std::function<Status(int, ParameterServer&)>& body,
                             std::vector<int> ranks) {
  if (ranks.empty()) {
    for (int rank = 0; rank < this->ranks(); ++rank) ranks.push_back(rank);
  }
  std::vector<Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = body(ranks[i], server(ranks[i])); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

Status Job::load(const std::string& name, const Checkpoint& checkpoint) {
  std::vector<TensorInfo> infos;
  for (const auto& [tensor_name, tensor] : checkpoint) infos.push_back(tensor.info);
  const auto shares = split_by_bytes(infos, ranks());
  const auto statuses = run([&](int rank, ParameterServer& server) -> Status {
    Registration part;
    for (const std::uint32_t i : shares[static_cast<std::size_t>(rank)]) {
      part.tensors.push_back({infos[i], checkpoint.at(infos[i].name).bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server.register_checkpoint(name, part));
    return server.gather_metas(name);
  });
  for (const Status& status : statuses) CKPT_RETURN_IF_ERROR(status);
  return Status();
}

EngineCall Job::call(std::vector<TestEngine>& engines, int passes) {
  return [this, &engines, passes](const std::vector<WorkerAddress>& all,
                                  EngineCallContext& context) -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto addresses,
                          engine_instance(all, context.rank(), options_.instance_size));
    if (addresses.empty()) return Status();
    std::size_t instance = 0;  // counted over recipients before this rank
    for (int rank = 0; rank < context.rank(); ++rank) {
      if (!all[static_cast<std::size_t>(rank)].address.empty()) ++instance;
    }
    if (options_.instance_size > 0) instance /= static_cast<std::size_t>(options_.instance_size);
    return engines.at(instance).update(addresses, passes);
  };
}

std::vector<Status> Job::update(const std::string& name, const EngineCall& call,
                                UpdateOptions options) {
  options.instance_size = options_.instance_size;
  options.engine_answer_means_done = true;
  reports.assign(static_cast<std::size_t>(ranks()), {});
  return run([&](int rank, ParameterServer& server) -> Status {
    auto report = server.update(name, call, options);
    if (report.is_ok()) reports[static_cast<std::size_t>(rank)] = std::move(*report);
    return report.status();
  });
}

}  // namespace ckpt::testing

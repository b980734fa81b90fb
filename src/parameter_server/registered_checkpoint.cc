#include "parameter_server/registered_checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "checkpoint/order.h"
#include "memory/file_mapping.h"
#include "memory/load.h"

namespace ckpt {
namespace {

/// The shared pool outlives its users, so that it can hold no files of theirs.
SharedMemoryFiles use_of_files(const Registration& part) {
  return part.use_shared_pool ? SharedMemoryFiles::kRead : part.shared_memory_files;
}

}  // namespace

/// Where one tensor comes from, and where it goes.
struct RegisteredCheckpoint::Source {
  TensorInfo info;
  const FileTensor* file = nullptr;  // exactly one of the two is set
  const MemoryTensor* memory = nullptr;
  bool in_place = false;
  std::uint64_t pool_offset = 0;
};

Result<std::vector<RegisteredCheckpoint::Source>> RegisteredCheckpoint::sources_in_plan_order(
    const Registration& part) {
  std::vector<Source> sources;
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (const MemoryTensor& tensor : part.tensors) {
    if (!by_name.emplace(tensor.info.name, sources.size()).second) {
      return invalid_argument(concat("tensor ", quoted(tensor.info.name), " was given twice"));
    }
    if (tensor.data == nullptr && tensor.info.bytes > 0) {
      return invalid_argument(concat("tensor ", quoted(tensor.info.name), " has no memory"));
    }
    sources.push_back({tensor.info, nullptr, &tensor});
  }
  for (const FileTensor& tensor : part.files) {
    const auto [at, is_new] = by_name.emplace(tensor.info.name, sources.size());
    if (is_new) {
      sources.push_back({tensor.info, &tensor, nullptr});
    } else if (sources[at->second].file != nullptr) {
      return invalid_argument(concat("tensor ", quoted(tensor.info.name), " is in ",
                                     sources[at->second].file->path, " and in ", tensor.path));
    }
  }
  std::vector<TensorInfo> infos;
  for (const Source& source : sources) infos.push_back(source.info);
  std::vector<Source> ordered;
  ordered.reserve(sources.size());
  for (const std::uint32_t i : plan_order(infos)) ordered.push_back(std::move(sources[i]));
  return ordered;
}

Status RegisteredCheckpoint::place(const Registration& part, std::vector<Source>& sources) {
  std::map<std::string, std::optional<std::unique_ptr<FileMapping>>>
      mapped;  // by path; nothing: read it
  const bool use_files = use_of_files(part) != SharedMemoryFiles::kRead;
  if (use_files) {
    for (const Source& source : sources) {
      if (source.file == nullptr || mapped.contains(source.file->path)) continue;
      auto& mapping = mapped[source.file->path];
      CKPT_ASSIGN_OR_RETURN(const bool possible, FileMapping::possible(source.file->path));
      if (!possible) continue;
      CKPT_ASSIGN_OR_RETURN(auto file, FileMapping::map(source.file->path));
      mapping = std::move(file);
    }
  }
  std::vector<std::uint64_t> pooled_bytes;
  for (Source& source : sources) {
    source.in_place = source.file != nullptr && use_files && mapped[source.file->path].has_value();
    if (!source.in_place) pooled_bytes.push_back(source.info.bytes);
  }
  CKPT_ASSIGN_OR_RETURN(const PoolLayout pool_layout, lay_out_pool(pooled_bytes));
  const bool any_mapped = std::any_of(mapped.begin(), mapped.end(),
                                      [](const auto& file) { return file.second.has_value(); });
  CKPT_RETURN_IF_ERROR(part.use_shared_pool ? take_shared_pool(pool_layout.bytes)
                                            : make_own_pool(pool_layout.bytes, any_mapped));
  std::map<std::string, std::uint64_t> file_offsets;
  for (auto& [path, mapping] : mapped) {
    if (mapping) file_offsets[path] = pool_->add_file(std::move(*mapping));
  }
  std::size_t pooled = 0;
  for (Source& source : sources) {
    source.pool_offset = source.in_place
                             ? file_offsets[source.file->path] + source.file->file_offset
                             : pool_layout.offsets[pooled++];
  }
  return Status();
}

Status RegisteredCheckpoint::take_shared_pool(std::uint64_t bytes) {
  context_.reclaimer.wait();  // both at once might not fit
  CKPT_ASSIGN_OR_RETURN(pool_, context_.shared_pool.take(name_, bytes, context_.near_device()));
  uses_shared_pool_ = true;
  return Status();
}

Status RegisteredCheckpoint::make_own_pool(std::uint64_t bytes, bool with_files) {
  if (!with_files) own_pool_ = context_.reclaimer.take_back(bytes);
  if (!own_pool_) {
    context_.reclaimer.wait();  // both at once might not fit
    CKPT_ASSIGN_OR_RETURN(own_pool_, HostPool::create(bytes, context_.near_device()));
  }
  pool_ = own_pool_.get();
  return Status();
}

Status RegisteredCheckpoint::load(const std::vector<Source>& sources, AbortSignal* abort) {
  // One list for each way in; `digest_at[k]` says to which tensor result k belongs.
  std::vector<PoolTensor> from_files, from_memory, from_device, in_place;
  std::vector<FileSource> files;
  std::vector<const std::byte*> memory, on_device;
  std::vector<std::size_t> file_at, memory_at, device_at, in_place_at;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    const PoolTensor tensor{source.info.name, source.info.bytes, source.pool_offset};
    if (source.in_place) {
      in_place.push_back(tensor);
      in_place_at.push_back(i);
    } else if (source.file != nullptr) {
      from_files.push_back(tensor);
      files.push_back({source.file->path, source.file->file_offset});
      file_at.push_back(i);
    } else if (source.info.bytes > 0 && context_.device.holds(source.memory->data)) {
      from_device.push_back(tensor);
      on_device.push_back(source.memory->data);
      device_at.push_back(i);
    } else {
      from_memory.push_back(tensor);
      memory.push_back(source.memory->data);
      memory_at.push_back(i);
    }
  }
  LoadOptions options{Deadline::after_seconds(context_.timeout_seconds)};
  options.abort = abort;
  options.pin = &context_.device;
  options.threads = context_.threads;
  digests_.resize(sources.size());
  const auto keep = [&](const TensorSums& sums, const std::vector<std::size_t>& at) {
    for (std::size_t k = 0; k < at.size(); ++k) digests_[at[k]] = sums.digest(k);
  };
  if (!from_files.empty()) {
    CKPT_ASSIGN_OR_RETURN(const TensorSums sums, load_files(*pool_, from_files, files, options));
    keep(sums, file_at);
  }
  if (!from_memory.empty()) {
    CKPT_ASSIGN_OR_RETURN(const TensorSums sums, load_memory(*pool_, from_memory, memory, options));
    keep(sums, memory_at);
  }
  if (!from_device.empty()) {
    CKPT_ASSIGN_OR_RETURN(const TensorSums sums,
                          load_device(*pool_, from_device, on_device, context_.device, options));
    keep(sums, device_at);
  }
  if (!in_place.empty()) {
    CKPT_ASSIGN_OR_RETURN(const TensorSums sums, digest_in_place(*pool_, in_place, options));
    keep(sums, in_place_at);
  }
  return Status();
}

InstanceData RegistrationContext::place() const {
  InstanceData data;
  data.rank = rank;
  data.epoch = epoch;
  data.host_id = host_id;
  data.network = network;
  return data;
}

HostPoolOptions RegistrationContext::near_device() const {
  HostPoolOptions options;
  options.numa_node = device.numa_node();
  return options;
}

Status RegisteredCheckpoint::publish() {
  if (context_.transport == nullptr) return Status();
  CKPT_ASSIGN_OR_RETURN(published_,
                        PublishedPool::publish(*pool_, *context_.transport, context_.leases,
                                               {concat("checkpoint ", name_), context_.epoch,
                                                kWhollyFilled, context_.reader_patience_seconds}));
  return Status();
}

Result<std::unique_ptr<RegisteredCheckpoint>> RegisteredCheckpoint::create(
    const std::string& name, const Registration& part, const RegistrationContext& context,
    AbortSignal* abort) {
  std::unique_ptr<RegisteredCheckpoint> checkpoint(new RegisteredCheckpoint(name, context));
  CKPT_ASSIGN_OR_RETURN(std::vector<Source> sources, sources_in_plan_order(part));
  CKPT_RETURN_IF_ERROR(checkpoint->place(part, sources));
  CKPT_RETURN_IF_ERROR(checkpoint->load(sources, abort));
  // Who is alone on its host, or lends to nobody, needs no registration with a network device.
  if (const Status published = checkpoint->publish(); !published.is_ok()) {
    log_warning("checkpoint ", name,
                " cannot be read by other hosts and jobs: ", published.message());
  }
  checkpoint->removes_files_ = use_of_files(part) == SharedMemoryFiles::kUseAndRemove;

  std::vector<TensorInfo> infos;
  for (Source& source : sources) {
    checkpoint->offsets_.push_back(source.pool_offset);
    infos.push_back(std::move(source.info));
  }
  checkpoint->layout_ = std::make_shared<const Layout>(Layout::make(std::move(infos)));
  return checkpoint;
}

RegisteredCheckpoint::~RegisteredCheckpoint() {
  published_.reset();
  if (uses_shared_pool_) context_.shared_pool.give_back(name_);
  if (own_pool_) context_.reclaimer.reclaim(std::move(own_pool_));
}

void RegisteredCheckpoint::remove_files() {
  if (!std::exchange(removes_files_, false)) return;
  for (const auto& file : pool_->files()) {
    // The checkpoint is whole: a name that cannot be removed is no reason to lose it.
    if (const Status removed = file->remove_file(); !removed.is_ok()) {
      log_warning("checkpoint ", name_, ": ", removed.message());
    }
  }
}

Result<InstanceData> RegisteredCheckpoint::instance_data() const {
  InstanceData data = context_.place();
  data.layout_hash = layout_->hash;
  data.digest_algorithm = kDigestAlgorithm;
  data.offsets = offsets_;
  data.digests = digests_;
  if (published_) CKPT_RETURN_IF_ERROR(published_->describe(data));
  return data;
}

}  // namespace ckpt

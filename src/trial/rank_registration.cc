// How long a rank takes to register its share: from memory, from files, in place, from its GPU.
#include <algorithm>
#include <filesystem>

#include "base/host.h"
#include "base/parallel.h"
#include "checkpoint/safetensors_writer.h"
#include "trial/rank_run.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Of /dev/shm, whose pages are the checkpoint's own while it is used in place.
std::uint64_t free_shared_memory() { return std::filesystem::space("/dev/shm").free; }

}  // namespace

Registration RankRun::from_memory() const {
  Registration part;
  for (const std::uint32_t i : share_) {
    part.tensors.push_back({weights_.tensors()[i], weights_.expected(i).data()});
  }
  return part;
}

Result<Registration> RankRun::write_files() {
  const std::string path = file_path();
  std::vector<TensorInfo> infos;
  for (const std::uint32_t i : share_) infos.push_back(weights_.tensors()[i]);
  CKPT_ASSIGN_OR_RETURN(const std::string header, encode_safetensors_header(infos, {}));
  CKPT_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::create(path, infos));
  ThreadPool threads(threads_of(settings_));
  CKPT_RETURN_IF_ERROR(threads.for_each(share_.size(), [&](std::size_t i) {
    return writer.write(i, 0, weights_.expected(share_[i]));
  }));
  CKPT_RETURN_IF_ERROR(writer.finish());
  Registration part;
  std::uint64_t offset = header.size();
  for (const TensorInfo& info : infos) {
    part.files.push_back({info, path, offset});
    offset += info.bytes;
  }
  return part;
}

Status RankRun::register_files() {
  CKPT_ASSIGN_OR_RETURN(const Registration part, write_files());
  const auto register_twice = [&]() -> Status {
    for (const char* which : {"register_files_first_seconds", "register_files_seconds"}) {
      CKPT_RETURN_IF_ERROR(barrier());
      const auto begin = Clock::now();
      CKPT_RETURN_IF_ERROR(server_->register_checkpoint("files", part));
      measured_[which] = seconds_since(begin);
      CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint("files"));
    }
    return Status();
  };
  const Status status = register_twice();
  std::filesystem::remove(file_path());
  return status;
}

Status RankRun::end_in_place() {
  const std::uint64_t before = free_shared_memory();
  CKPT_RETURN_IF_ERROR(barrier());
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint(kName));
  measured_["unregister_in_place_seconds"] = seconds_since(begin);
  CKPT_RETURN_IF_ERROR(barrier());
  // Of all ranks; rings come and go beside them.
  if (free_shared_memory() < before + share_bytes_ / 2) {
    return internal_error(
        concat(file_path(), " was unregistered, and /dev/shm is as full as before"));
  }
  return Status();
}

// From tensors on the GPU into a shared pool: the first use pins it, the second is copies alone.
Status RankRun::register_device_memory() {
  std::uint64_t end = 0;
  const std::byte* first = weights_.expected(0).data();
  for (std::size_t i = 0; i < weights_.tensors().size(); ++i) {
    const auto bytes = weights_.expected(i);
    end = std::max(end, static_cast<std::uint64_t>(bytes.data() - first) + bytes.size());
  }
  CKPT_ASSIGN_OR_RETURN(const auto memory,
                        device_->allocate(end, concat("gpu-update-", random_id())));
  memory->close_to_others();
  CKPT_ASSIGN_OR_RETURN(const auto stream, device_->make_stream());
  CKPT_RETURN_IF_ERROR(stream->copy(memory->data(), first, end));
  CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
  AbortSignal never;
  CKPT_RETURN_IF_ERROR(stream->wait(ticket, Deadline::after_seconds(kPatienceSeconds), never));
  Registration part = from_memory();
  for (MemoryTensor& tensor : part.tensors) tensor.data = memory->data() + (tensor.data - first);
  part.use_shared_pool = true;
  for (const char* which : {"register_device_first_seconds", "register_device_seconds"}) {
    CKPT_RETURN_IF_ERROR(barrier());
    const auto begin = Clock::now();
    CKPT_RETURN_IF_ERROR(server_->register_checkpoint("device", part));
    measured_[which] = seconds_since(begin);
    CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint("device"));
  }
  return Status();
}

Status RankRun::measure_registration() {
  for (const std::uint32_t i : share_) share_bytes_ += weights_.tensors()[i].bytes;
  Registration in_place;
  if (settings_.in_place) {
    CKPT_ASSIGN_OR_RETURN(in_place, write_files());
    in_place.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
  }
  // Twice: in a virtual machine the first use of memory is the host's work, not ours.
  for (const char* which : {"register_first_seconds", "register_seconds"}) {
    CKPT_RETURN_IF_ERROR(barrier());
    const auto begin = Clock::now();
    const bool last = which == std::string("register_seconds");
    CKPT_RETURN_IF_ERROR(
        server_->register_checkpoint(kName, last && settings_.in_place ? in_place : from_memory()));
    measured_[which] = seconds_since(begin);
    CKPT_RETURN_IF_ERROR(barrier());
    if (last) break;
    const auto end_begin = Clock::now();
    CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint(kName));
    measured_["unregister_seconds"] = seconds_since(end_begin);
    if (!settings_.files.empty() && !settings_.in_place) CKPT_RETURN_IF_ERROR(register_files());
    if (settings_.from_device) CKPT_RETURN_IF_ERROR(register_device_memory());
  }
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(server_->gather_metas(kName));
  measured_["gather_seconds"] = seconds_since(begin);
  if (settings_.in_place && std::filesystem::exists(file_path())) {
    return internal_error(concat(file_path(), " is used in place, and still there"));
  }
  return barrier();
}

}  // namespace ckpt::bench

// What the machine can do, measured by all ranks at once: the ceilings that updates are held
// against.
#include <span>

#include "trial/rank_run.h"

namespace ckpt::bench {
namespace {

constexpr std::uint64_t kCeilingChunk = 32 << 20;
constexpr double kCeilingSeconds = 0.5;

}  // namespace

Status RankRun::measure_ceilings() {
  CKPT_ASSIGN_OR_RETURN(const auto upload, Upload::create(*device_));
  CKPT_RETURN_IF_ERROR(barrier());  // all at once
  CKPT_ASSIGN_OR_RETURN(const double rate, upload->measure(kCeilingChunk, kCeilingSeconds));
  CKPT_ASSIGN_OR_RETURN(measured_["download_gb_per_s"],
                        upload->measure_back(kCeilingChunk, kCeilingSeconds));
  measured_["upload_gb_per_s"] = rate;
  CKPT_RETURN_IF_ERROR(barrier());
  return settings_.ranks > 1 && settings_.hosts == 1 ? measure_peer(*upload) : Status();
}

// Every rank copies out of the memory of the next, all at once.
Status RankRun::measure_peer(Upload& upload) {
  const BufferHandle mine = upload.handle();
  const std::string_view ipc(reinterpret_cast<const char*>(mine.ipc.data()), mine.ipc.size());
  const std::string told = concat(mine.shared_memory, '\n', mine.device_uuid, '\n', ipc);
  CKPT_ASSIGN_OR_RETURN(const auto all, server_->all_gather(told, kPatienceSeconds));
  const std::string& text = all[static_cast<std::size_t>((settings_.rank + 1) % settings_.ranks)];
  const std::size_t uuid = text.find('\n') + 1, rest = text.find('\n', uuid) + 1;
  BufferHandle next = mine;
  next.shared_memory = text.substr(0, uuid - 1);
  next.device_uuid = text.substr(uuid, rest - 1 - uuid);
  const auto bytes = std::as_bytes(std::span(text).subspan(rest));
  next.ipc.assign(bytes.begin(), bytes.end());
  CKPT_RETURN_IF_ERROR(barrier());
  CKPT_ASSIGN_OR_RETURN(measured_["peer_gb_per_s"],
                        upload.measure_peer(next, kCeilingChunk, kCeilingSeconds));
  return barrier();  // nobody has it open any more
}

}  // namespace ckpt::bench

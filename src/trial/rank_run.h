// The parameter server of one rank of a trial, and what it measures.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "checkpoint/split.h"
#include "checkpoint_engine/parameter_server.h"
#include "trial/ceiling.h"
#include "trial/processes.h"
#include "trial/roles.h"
#include "trial/weights.h"

namespace ckpt::bench {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class RankRun {
 public:
  explicit RankRun(const Settings& settings);
  ~RankRun();

  /// Measures everything.
  Result<nlohmann::json> run();
  /// One update that works and one in which a rank dies. Not on that rank: does not return there.
  Result<nlohmann::json> run_until_death();
  Status tell_parent(const nlohmann::json& result);

 private:
  static constexpr double kPatienceSeconds = 600;
  static constexpr const char* kName = "bench";  // of the checkpoint
  Status start();
  Status meet_worker();
  Result<ParameterServerOptions> server_options() const;
  Status join_readers();
  Status measure_ceilings();
  Status measure_peer(Upload& upload);
  Status measure_registration();
  std::string file_path() const {
    return concat(settings_.files, "/gpu-update-", settings_.rank, ".safetensors");
  }
  Result<Registration> write_files();
  Status register_files();
  Status end_in_place();
  Status register_device_memory();
  Status measure_updates(nlohmann::json& result);
  Result<UpdateReport> update(const UpdateOptions& options, std::vector<std::string>& numbers);
  Status measure_update(bool verify, nlohmann::json& updates);
  Status measure_failures();
  UpdateOptions update_options(bool verify) const;
  [[noreturn]] void die();
  bool is_recipient() const { return settings_.rank >= settings_.first_recipient; }
  Status ask_worker(const std::string& line);
  Status barrier() { return server_->barrier(kPatienceSeconds); }
  Registration from_memory() const;

  const Settings& settings_;
  LineChannel worker_;
  LineChannel parent_;
  const Weights weights_;
  std::vector<std::uint32_t> share_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<ParameterServer> owner_;  // with `loaded`: of the first job
  std::unique_ptr<ParameterServer> server_;
  std::uint64_t share_bytes_ = 0;
  std::map<std::string, double> measured_;  // seconds, or GB/s; names are the result's
};

}  // namespace ckpt::bench

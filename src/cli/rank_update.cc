#include "cli/rank_update.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/host.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/split.h"
#include "cli/interrupt.h"
#include "cli/progress_display.h"
#include "cli/report_json.h"
#include "cli/report_table.h"
#include "cli/terminal.h"
#include "cli/text_file.h"

namespace ckpt {
namespace {

ProgressKind progress_kind(const UpdateCommand& command) {
  if (command.quiet || command.progress == "none") return ProgressKind::kNone;
  if (command.progress == "bar") return ProgressKind::kBar;
  if (command.progress == "lines") return ProgressKind::kLines;
  return ::isatty(STDERR_FILENO) != 0 ? ProgressKind::kBar : ProgressKind::kLines;
}

class RankUpdate {
 public:
  RankUpdate(const UpdateCommand& command, UpdateInputs inputs, Interrupt& interrupt)
      : command_(command),
        inputs_(std::move(inputs)),
        settings_(inputs_.settings),
        interrupt_(interrupt),
        progress_(progress_kind(command)) {
    name_ = command.checkpoint_name;
    // The field's example program calls it so.
    if (name_.empty() && command.load_metas_files.empty()) name_ = "my-checkpoint-iter-0";
  }

  Status run() {
    if (const Status updated = update_all(); !updated) return report_failure(updated);
    return command_.sleep_seconds > 0 ? sleep() : Status::ok();
  }

  /// True when the checkpoint itself is not valid.
  bool refused() const { return refused_; }

 private:
  Status update_all() {
    CKPT_ASSIGN_OR_RETURN(server_, ParameterServer::create(inputs_.server));
    report_.rank = server_->rank();
    report_.host = host_name();
    CKPT_RETURN_IF_ERROR(agree(set_up()));
    CKPT_RETURN_IF_ERROR(gather());
    for (const auto& recipients : settings_.updates) CKPT_RETURN_IF_ERROR(update(recipients));
    return publish_report();
  }

  /// What a rank does without the others.
  Status set_up() {
    if (!command_.checkpoint_path.empty()) CKPT_RETURN_IF_ERROR(register_part());
    return wait_for_engine();
  }

  Status register_part() {
    auto scanned = scan_checkpoint(command_.checkpoint_path);
    refused_ = !scanned;
    CKPT_ASSIGN_OR_RETURN(const CheckpointFiles files, std::move(scanned));
    const auto parts = command_.split == "files"
                           ? split_by_files(files.tensors, files.file_of, server_->world_size())
                           : split_by_bytes(files.tensors, server_->world_size());
    Registration registration;
    // The files are the caller's own, and what an update needs if it has to be made again.
    if (command_.in_place) registration.shared_memory_files = SharedMemoryFiles::kUse;
    std::uint64_t bytes = 0;
    for (const std::uint32_t index : parts[static_cast<std::size_t>(server_->rank())]) {
      const TensorInfo& tensor = files.tensors[index];
      registration.files.push_back(
          {tensor, files.files[files.file_of[index]].path, files.offset_of[index]});
      bytes += tensor.bytes;
    }
    return timed("register", bytes,
                 [&] { return server_->register_checkpoint(name_, registration); });
  }

  /// The first rank of an instance asks; the others learn the answer from agree().
  Status wait_for_engine() {
    if (settings_.engine == EngineChoice::kNone || !is_first_of_instance()) return Status::ok();
    const EngineCallOptions options = call_options();
    CKPT_ASSIGN_OR_RETURN(Endpoint endpoint, instance_endpoint(options, server_->rank()));
    const EngineClient client(engine_kind(settings_.engine), std::move(endpoint),
                              options.bearer_token);
    return timed("wait for engine", 0, [&] {
      return client.wait_ready(Deadline::after_seconds(command_.timeout_seconds),
                               *interrupt_.signal());
    });
  }

  bool is_first_of_instance() const {
    const int rank = server_->rank();
    if (rank % settings_.instance_size != 0) return false;
    for (const auto& recipients : settings_.updates) {
      if (recipients.empty() || rank < settings_.instance_size) return true;
    }
    return false;
  }

  /// Every rank ends with the first error in rank order, not with "rank 3 has left". Those that are
  /// done wait for the slowest disk and engine.
  Status agree(const Status& mine) {
    const std::string text = mine ? "" : concat(static_cast<int>(mine.code()), " ", mine.message());
    CKPT_ASSIGN_OR_RETURN(
        const auto all,
        server_->all_gather(text, command_.register_timeout_seconds + command_.timeout_seconds));
    CKPT_RETURN_IF_ERROR(mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto space = all[rank].find(' ');
      if (space == std::string::npos) continue;
      const auto code = parse_int(std::string_view(all[rank]).substr(0, space));
      return Status(code ? static_cast<StatusCode>(*code) : StatusCode::kInternal,
                    all[rank].substr(space + 1))
          .on_rank(static_cast<int>(rank));
    }
    return Status::ok();
  }

  Status load_metas() {
    CKPT_RETURN_IF_ERROR(timed("load metas", 0, [&] {
                           return server_->load_metas(inputs_.metas);
                         }).with_context(join(command_.load_metas_files, ", ")));
    if (name_.empty()) name_ = server_->checkpoint_name();
    return Status::ok();
  }

  Status gather() {
    if (!command_.load_metas_files.empty()) {
      CKPT_RETURN_IF_ERROR(agree(load_metas()));
      if (!command_.fan_out) return Status::ok();
      CKPT_RETURN_IF_ERROR(timed("offer", 0, [&] { return server_->offer_loaded(); }));
    } else {
      CKPT_RETURN_IF_ERROR(timed("gather", 0, [&] { return server_->gather_metas(name_); }));
    }
    if (command_.save_metas_file.empty() || server_->rank() != 0) return Status::ok();
    CKPT_ASSIGN_OR_RETURN(const std::string json, server_->export_metas());
    return write_text_file(command_.save_metas_file, json);
  }

  EngineCallOptions call_options() {
    EngineCallOptions options;
    options.engine = settings_.engine;
    options.endpoints = settings_.endpoints;
    options.instance_size = settings_.instance_size;
    options.bearer_token = inputs_.api_key;
    options.update.reset_prefix_cache = command_.reset_prefix_cache;
    options.update.pause_mode = command_.pause;
    if (!command_.weight_version.empty()) options.update.weight_version = command_.weight_version;
    options.interrupt = interrupt_.signal();
    options.observer = [this](const EngineAnswered& answer) {
      // One call at a time; and the update's end, before which the report is not read, joins it.
      report_.engine_answers.push_back(
          {answer.engine, answer.path, answer.status, answer.seconds, answer.body});
    };
    options.announce = [](int instance, const std::map<std::string, std::string>& addresses) {
      for (const auto& [key, address] : addresses) {
        say(concat("instance ", instance, ": worker ", key, " is awaited at ", address));
      }
    };
    return options;
  }

  Status update(const std::vector<int>& recipients) {
    UpdateOptions options;
    options.recipients = recipients;
    options.instance_size = settings_.instance_size;
    options.timeout_seconds = command_.timeout_seconds;
    options.verify = command_.verify;
    options.engine_answer_means_done = settings_.engine != EngineChoice::kNone;
    if (server_->rank() == 0) {
      options.progress = [this](std::uint64_t done, std::uint64_t total) {
        progress_.update(done, total);
      };
    }
    progress_.begin();
    const Interrupt::Update interruptible(interrupt_);
    auto report = server_->update(name_, make_engine_call(call_options()), options);
    progress_.end();
    if (!report) return report.status();
    report_.updates.push_back(std::move(*report));
    return Status::ok();
  }

  /// The update's error; what became of the report is worth a line of the log beside it.
  Status report_failure(const Status& error) {
    if (!inputs_.writes_report) return error;
    const Status written = write_text_file(command_.report_file, failed_report_json(error));
    if (!written) log_warning("--report: ", written.message());
    return error;
  }

  Status publish_report() {
    CKPT_ASSIGN_OR_RETURN(const auto texts, server_->all_gather(encode_rank_report(report_),
                                                                command_.timeout_seconds));
    if (server_->rank() != 0) return Status::ok();
    std::vector<RankReport> ranks;
    for (const std::string& text : texts) {
      CKPT_ASSIGN_OR_RETURN(RankReport rank, decode_rank_report(text));
      ranks.push_back(std::move(rank));
    }
    if (!command_.quiet) {
      std::fputs(report_table(ranks).c_str(), stdout);
      std::fflush(stdout);
    }
    if (!inputs_.writes_report) return Status::ok();
    return write_text_file(command_.report_file, job_report_json(ranks));
  }

  /// Its memory can be read by other jobs meanwhile. A signal ends it, and those that are reading
  /// have until the process ends to finish.
  Status sleep() {
    if (!command_.quiet && server_->rank() == 0) {
      say(concat("serving the checkpoint to other jobs for ", command_.sleep_seconds, " s"));
    }
    const Interrupt::Update interruptible(interrupt_);
    const Deadline end = Deadline::after_seconds(command_.sleep_seconds);
    CKPT_ASSIGN_OR_RETURN(const bool interrupted, wait_readable(interrupt_.signal()->fd(), end));
    return interrupted ? interrupt_.signal()->cause() : Status::ok();
  }

  template <typename Body>
  Status timed(const char* stage, std::uint64_t bytes, Body body) {
    const auto start = Deadline::Clock::now();
    const Status status = body();
    const std::chrono::duration<double> taken = Deadline::Clock::now() - start;
    report_.setup.push_back({stage, taken.count(), bytes});
    return status;
  }

  const UpdateCommand& command_;
  const UpdateInputs inputs_;
  const UpdateSettings& settings_;
  Interrupt& interrupt_;
  ProgressDisplay progress_;
  std::string name_;  // of the checkpoint
  bool refused_ = false;
  RankReport report_;
  std::unique_ptr<ParameterServer> server_;
};

}  // namespace

RankOutcome run_rank(const UpdateCommand& command, UpdateInputs inputs) {
  Interrupt interrupt;
  RankUpdate rank(command, std::move(inputs), interrupt);
  RankOutcome outcome;
  outcome.status = rank.run();
  outcome.refused = rank.refused();
  return outcome;
}

}  // namespace ckpt

#include "cli/receive_command.h"

#include <poll.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "cli/secret_file.h"
#include "cli/stop_signals.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "control/rendezvous.h"
#include "http/held_weights.h"
#include "http/receive_server.h"

namespace ckpt {
namespace {

/// Reports of updates, from the server's threads to the main one.
class UpdateQueue {
 public:
  void push(Result<InstanceReport> report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    event_.set();
  }
  std::vector<Result<InstanceReport>> take_all() {
    const std::lock_guard lock(mutex_);
    event_.clear();
    return std::exchange(reports_, {});
  }
  int fd() const { return event_.fd(); }

 private:
  std::mutex mutex_;
  EventFd event_;
  std::vector<Result<InstanceReport>> reports_;
};

/// The program between its start and its exit code.
class Receiver {
 public:
  Receiver(const ReceiveCommand& command, ReceivingInstance& instance,
           std::optional<CheckpointFiles> expected)
      : command_(command), instance_(instance), expected_(std::move(expected)) {}

  UpdateQueue& queue() { return queue_; }

  /// Until it is time to exit: the exit code.
  int serve(StopSignals& signals) {
    for (;;) {
      pollfd waits[] = {{signals.fd(), POLLIN, 0}, {queue_.fd(), POLLIN, 0}};
      ::poll(waits, 2, -1);
      if (signals.take()) {
        if (instance_.updating()) {
          return fail(aborted("a signal ended this instance in the middle of an update"));
        }
        return last_ || !expected_ ? kExitOk : fail(last_.with_context("--expect"));
      }
      for (const auto& report : queue_.take_all()) {
        if (!report) {
          log_error("update failed: ", report.status().message());
          last_ = report.status();
          continue;
        }
        if (const Status handled = after_update(*report); !handled) return fail(handled);
        last_ = Status();
        if (++updates_ == command_.exit_after) return kExitOk;
      }
    }
  }

 private:
  Status after_update(const InstanceReport& report) {
    std::uint64_t bytes = 0, verified = 0;
    for (const ReceiveReport& worker : report.workers) {
      bytes += worker.bytes;
      verified += worker.verified_tensors;
    }
    if (!command_.quiet) {
      say(concat("update ", updates_ + 1, ": ", report.workers.front().tensors, " tensors, ",
                 format_bytes(bytes), " on ", report.workers.size(), " workers in ", report.seconds,
                 " s, ", verified, " digests verified"));
    }
    return instance_.with_memory([&](const auto& workers) -> Status {
      CKPT_RETURN_IF_ERROR(write_output(workers));
      return check_expected(workers);
    });
  }

  Status write_output(const std::vector<const WorkerMemory*>& workers) {
    if (command_.output.empty()) return Status::ok();
    if (!command_.output_all) return write_held_weights(*workers.front(), command_.output);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      CKPT_RETURN_IF_ERROR(write_held_weights(*workers[i], concat(command_.output, "/worker-", i)));
    }
    return Status::ok();
  }

  Status check_expected(const std::vector<const WorkerMemory*>& workers) {
    if (!expected_) return Status::ok();
    for (std::size_t i = 0; i < workers.size(); ++i) {
      CKPT_RETURN_IF_ERROR(compare_with_checkpoint(*workers[i], *expected_, threads_)
                               .with_context(concat("worker ", i)));
    }
    say(concat("verified: ", expected_->tensors.size(), " tensors, ", expected_->total_bytes(),
               " bytes on ", workers.size(), " workers equal ", command_.expect));
    return Status::ok();
  }

  const ReceiveCommand& command_;
  ReceivingInstance& instance_;
  const std::optional<CheckpointFiles> expected_;
  ThreadPool threads_{available_processors()};
  UpdateQueue queue_;
  int updates_ = 0;
  Status last_ = failed_precondition("no update has come");  // how the last update ended
};

Result<InstanceOptions> instance_options(const ReceiveCommand& command) {
  InstanceOptions options;
  for (int i = 0; i < command.workers; ++i) options.worker_keys.push_back(concat("CPU-", i));
  options.receiver.timeout_seconds = command.timeout_seconds;
  options.receiver.verify = command.verify;
  CKPT_ASSIGN_OR_RETURN(options.receiver.secret, read_secret_file(command.secret_file));
  options.update_weights = update_weights;
  return options;
}

Result<ReceiveServerOptions> server_options(const ReceiveCommand& command) {
  ReceiveServerOptions options;
  options.socket_path = command.uds;
  if (!command.uds.empty()) return options;
  CKPT_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port(command.listen));
  options.host = listen.host;
  options.port = listen.port;
  return options;
}

}  // namespace

int run(const ReceiveCommand& command) {
  std::optional<CheckpointFiles> expected;
  if (!command.expect.empty()) {
    auto files = scan_checkpoint(command.expect);
    if (!files) return refuse(files.status().with_context("--expect"));
    expected = std::move(*files);
  }
  auto options = server_options(command);
  if (!options) return refuse(options.status().with_context("--listen"));
  auto instance_setup = instance_options(command);
  if (!instance_setup) return refuse(instance_setup.status());

  StopSignals signals;
  ReceivingInstance instance(std::move(*instance_setup));
  Receiver receiver(command, instance, std::move(expected));
  options->on_update = [&](const Result<InstanceReport>& report) { receiver.queue().push(report); };
  const auto server = ReceiveServer::start(std::move(*options), instance);
  if (!server) return fail(server.status());
  const std::string address = (*server)->endpoint().to_string();
  if (!command.ready_file.empty()) {
    const Status ready = write_text_file(command.ready_file, address + "\n");
    if (!ready) return fail(ready);
  }
  if (!command.quiet) say(concat("receiving on ", address, " for ", command.workers, " workers"));
  const int code = receiver.serve(signals);
  // An update that a signal has cut off ends in its own time; its rank learns at once that we are
  // gone.
  if (code != kExitOk && instance.updating()) {
    if (!command.uds.empty()) ::unlink(command.uds.c_str());
    ::_exit(code);
  }
  (*server)->stop();
  return code;
}

}  // namespace ckpt

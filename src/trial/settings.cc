#include "trial/settings.h"

#include <cstdlib>
#include <functional>
#include <map>

#include "base/strings.h"

namespace ckpt::bench {
namespace {

/// One option: how it is read and written.
struct Option {
  std::function<Status(const std::string&)> set;
  std::function<std::string()> get;
};

std::map<std::string, Option> options_of(Settings& settings) {
  const auto text = [](std::string& value) {
    return Option{[&value](const std::string& given) {
                    value = given;
                    return Status();
                  },
                  [&value] { return value; }};
  };
  const auto number = [](int& value) {
    return Option{[&value](const std::string& given) -> Status {
                    CKPT_ASSIGN_OR_RETURN(const auto parsed, parse_int(given));
                    value = static_cast<int>(parsed);
                    return Status();
                  },
                  [&value] { return concat(value); }};
  };
  const auto flag = [](bool& value) {
    return Option{[&value](const std::string& given) {
                    value = given == "1";
                    return Status();
                  },
                  [&value] { return std::string(value ? "1" : "0"); }};
  };
  return {
      {"--device", text(settings.device)},
      {"--gib", Option{[&settings](const std::string& given) {
                         settings.gib = std::strtod(given.c_str(), nullptr);
                         return Status();
                       },
                       [&settings] { return concat(settings.gib); }}},
      {"--ranks", number(settings.ranks)},
      {"--gpus", number(settings.gpus)},
      {"--isolate", flag(settings.isolate)},
      {"--hosts", number(settings.hosts)},
      {"--worker", text(settings.worker)},
      {"--kill-rank", number(settings.kill_rank)},
      {"--dies", flag(settings.dies)},
      {"--tensors", number(settings.tensors)},
      {"--tensor-bytes", text(settings.tensor_bytes)},
      {"--experts", flag(settings.experts)},
      {"--owners", number(settings.owners)},
      {"--first-recipient", number(settings.first_recipient)},
      {"--loaded", flag(settings.loaded)},
      {"--shrink", number(settings.shrink)},
      {"--ring", text(settings.ring)},
      {"--bucket", text(settings.bucket)},
      {"--chunk", text(settings.chunk)},
      {"--collective", text(settings.collective)},
      {"--overlap", text(settings.overlap)},
      {"--keep-buffers", flag(settings.keep_buffers)},
      {"--release-communicators", flag(settings.release_communicators)},
      {"--nccl-ceilings", flag(settings.nccl_ceilings)},
      {"--nccl-alone", flag(settings.nccl_alone)},
      {"--updates", number(settings.updates)},
      {"--load-threads", number(settings.load_threads)},
      {"--files", text(settings.files)},
      {"--failures", number(settings.failures)},
      {"--in-place", flag(settings.in_place)},
      {"--from-device", flag(settings.from_device)},
      {"--json", text(settings.json)},
      {"--role", text(settings.role)},
      {"--rank", number(settings.rank)},
      {"--peer-fd", number(settings.peer_fd)},
      {"--result-fd", number(settings.result_fd)},
      {"--rendezvous", text(settings.rendezvous)},
      {"--reader-rendezvous", text(settings.reader_rendezvous)},
      {"--job", text(settings.job)},
  };
}

}  // namespace

Result<Settings> parse_settings(const std::vector<std::string>& arguments) {
  Settings settings;
  const auto options = options_of(settings);
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const auto option = options.find(arguments[i]);
    if (option == options.end()) return invalid_argument(concat("no option ", arguments[i]));
    if (i + 1 == arguments.size()) return invalid_argument(arguments[i] + " needs a value");
    CKPT_RETURN_IF_ERROR(option->second.set(arguments[i + 1]).with_context(arguments[i]));
  }
  if (settings.ranks < 1 || settings.gpus < 1 || settings.hosts < 1 || settings.shrink < 1 ||
      settings.updates < 1) {
    return invalid_argument("ranks, gpus, hosts, shrink and updates must be positive");
  }
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t tensor_bytes, parse_bytes(settings.tensor_bytes));
  if (settings.tensors < 0 || tensor_bytes < 2 || tensor_bytes % 2 != 0) {
    return invalid_argument("tensors have an even number of bytes, two at least");
  }
  if (settings.owners < 0 || settings.owners > settings.ranks || settings.first_recipient < 0 ||
      settings.first_recipient >= settings.ranks) {
    return invalid_argument("owners and first-recipient count ranks");
  }
  if (settings.in_place && !settings.files.starts_with("/dev/shm")) {
    return invalid_argument("--in-place needs --files with a folder in /dev/shm");
  }
  if (settings.kill_rank >= settings.ranks) {
    return invalid_argument(concat("no rank ", settings.kill_rank, " to be killed"));
  }
  return settings;
}

std::vector<std::string> to_arguments(const Settings& settings) {
  Settings copy = settings;
  std::vector<std::string> arguments;
  for (const auto& [name, option] : options_of(copy)) {
    arguments.push_back(name);
    arguments.push_back(option.get());
  }
  return arguments;
}

}  // namespace ckpt::bench

#include "http/service_requests.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxName = 255;
constexpr double kMaxTimeout = 7 * 24 * 3600;

Result<json> parse_object(std::string_view text, std::initializer_list<std::string_view> members) {
  json body = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) return invalid_argument("the body is not a JSON object");
  for (const auto& [name, value] : body.items()) {
    if (std::find(members.begin(), members.end(), name) == members.end()) {
      return invalid_argument(concat("unknown member ", quoted(name), "; there are ",
                                     join({members.begin(), members.end()}, ", ")));
    }
  }
  return body;
}

/// The member, or null when it is missing or null.
const json& member(const json& body, const char* name) {
  static const json null;
  const auto found = body.find(name);
  return found == body.end() ? null : *found;
}

bool is_blank_or_control(char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; }

Status wrong(const char* name, const char* wanted) {
  return invalid_argument(concat("'", name, "' is not ", wanted));
}

Result<std::string> optional_text(const json& body, const char* name) {
  const json& value = member(body, name);
  if (value.is_null()) return std::string();
  if (!value.is_string()) return wrong(name, "a string");
  return value.get<std::string>();
}

/// Ascending, without repeats.
Result<std::vector<int>> optional_ranks(const json& body, const char* name, int world_size) {
  const json& value = member(body, name);
  std::vector<int> ranks;
  if (value.is_null()) return ranks;
  if (!value.is_array()) return wrong(name, "an array of ranks");
  for (const json& each : value) {
    if (!each.is_number_integer()) return wrong(name, "an array of ranks");
    const auto rank = each.get<std::int64_t>();
    if (rank < 0 || rank >= world_size) {
      return invalid_argument(
          concat("'", name, "': the job has ranks 0 to ", world_size - 1, ", not ", rank));
    }
    ranks.push_back(static_cast<int>(rank));
  }
  std::sort(ranks.begin(), ranks.end());
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return invalid_argument(concat("'", name, "' names a rank twice"));
  }
  return ranks;
}

Result<double> timeout_of(const json& body) {
  const json& value = member(body, "timeout");
  if (value.is_null()) return UpdateRequest().timeout_seconds;
  if (!value.is_number()) return wrong("timeout", "a number of seconds");
  const double seconds = value.get<double>();
  if (!(seconds > 0 && seconds <= kMaxTimeout)) {
    return invalid_argument(concat("'timeout' is not in (0, ", kMaxTimeout, "] seconds"));
  }
  return seconds;
}

Result<EngineUpdateOptions> engine_options(const json& body) {
  EngineUpdateOptions options;
  CKPT_ASSIGN_OR_RETURN(const std::string version, optional_text(body, "weight_version"));
  if (!version.empty()) options.weight_version = version;
  CKPT_ASSIGN_OR_RETURN(options.pause_mode, optional_text(body, "pause"));
  const auto& mode = options.pause_mode;
  if (!mode.empty() && mode != "abort" && mode != "wait" && mode != "keep") {
    return wrong("pause", "abort, wait or keep");
  }
  const json& reset = member(body, "reset_prefix_cache");
  if (!reset.is_null() && !reset.is_boolean()) return wrong("reset_prefix_cache", "a boolean");
  options.reset_prefix_cache = reset == true;
  return options;
}

}  // namespace

Result<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    const auto digits = text.substr(i + 1, 2);
    unsigned value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) {
      return invalid_argument(concat(quoted(text), ": '%' is not followed by two digits"));
    }
    out.push_back(static_cast<char>(value));
    i += 2;
  }
  return out;
}

Result<std::string> checkpoint_name(std::string_view segment) {
  CKPT_ASSIGN_OR_RETURN(std::string name, percent_decoded(segment));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; };
  if (name.empty()) return invalid_argument("the name of the checkpoint is empty");
  if (name.size() > kMaxName) {
    return invalid_argument(
        concat("the name of the checkpoint has ", name.size(), " bytes, more than ", kMaxName));
  }
  // What is no UTF-8 does not come back.
  const bool utf8 =
      json::parse(json(name).dump(-1, ' ', false, json::error_handler_t::ignore)) == name;
  if (!utf8 || std::any_of(name.begin(), name.end(), is_control)) {
    return invalid_argument(
        concat("the name of the checkpoint is not plain UTF-8 text: ", quoted(name)));
  }
  return name;
}

Result<FilesRequest> parse_files_request(std::string_view body) {
  CKPT_ASSIGN_OR_RETURN(const json object, parse_object(body, {"files"}));
  const json& files = member(object, "files");
  if (!files.is_array()) return wrong("files", "an array of paths");
  FilesRequest request;
  for (const json& file : files) {
    if (!file.is_string()) return wrong("files", "an array of paths");
    request.files.push_back(file.get<std::string>());
    if (request.files.back().empty() || request.files.back().find('\0') != std::string::npos) {
      return invalid_argument("'files' holds a path that is none");
    }
  }
  return request;
}

Result<UpdateTarget> parse_update_target(const std::string& url, const std::string& uds) {
  constexpr std::string_view kSglang = "/update_weights_from_ipc", kNative = "/update_weights",
                             kRpc = "/collective_rpc";
  // Behind the host everything is part of a request's line.
  if (std::any_of(url.begin(), url.end(), is_blank_or_control)) {
    return invalid_argument(concat("'update_url' ", quoted(url),
                                   " holds a space or a control character; write it as %20"));
  }
  std::string_view rest = std::string_view(url).substr(0, url.find('#'));
  UpdateTarget target;
  const auto question = std::min(rest.find('?'), rest.size());
  target.query = rest.substr(question);
  rest = rest.substr(0, question);
  const auto scheme = rest.find("://");
  const auto slash =
      std::min(rest.find('/', scheme == std::string_view::npos ? 0 : scheme + 3), rest.size());
  std::string path(rest.substr(slash));
  if (uds.empty() || slash > 0) {
    CKPT_ASSIGN_OR_RETURN(target.endpoint, parse_endpoint(rest.substr(0, slash)));
  }
  if (!uds.empty()) {
    CKPT_ASSIGN_OR_RETURN(target.endpoint, unix_endpoint(uds));
  }
  for (const auto& [ending, kind] :
       {std::pair(kSglang, EngineKind::kSglang), std::pair(kNative, EngineKind::kVllmNative),
        std::pair(kRpc, EngineKind::kVllm)}) {
    if (!path.ends_with(ending)) continue;
    path.resize(path.size() - ending.size());
    target.endpoint.base_path = std::move(path);
    target.kind = kind;
    return target;
  }
  target.path = path.empty() ? "/" : std::move(path);
  return target;
}

Result<UpdateRequest> parse_update_request(std::string_view body, int world_size) {
  CKPT_ASSIGN_OR_RETURN(
      const json object,
      parse_object(body, {"ranks", "update_url", "inference_group_ranks", "timeout", "uds",
                          "weight_version", "reset_prefix_cache", "pause"}));
  UpdateRequest request;
  CKPT_ASSIGN_OR_RETURN(request.ranks, optional_ranks(object, "ranks", world_size));
  CKPT_ASSIGN_OR_RETURN(request.group, optional_ranks(object, "inference_group_ranks", world_size));
  CKPT_ASSIGN_OR_RETURN(request.timeout_seconds, timeout_of(object));
  CKPT_ASSIGN_OR_RETURN(request.options, engine_options(object));
  CKPT_ASSIGN_OR_RETURN(const std::string url, optional_text(object, "update_url"));
  CKPT_ASSIGN_OR_RETURN(const std::string uds, optional_text(object, "uds"));
  if (!url.empty()) {
    CKPT_ASSIGN_OR_RETURN(request.target, parse_update_target(url, uds));
  }
  for (const int rank : request.group) {
    if (!request.ranks.empty() &&
        !std::binary_search(request.ranks.begin(), request.ranks.end(), rank)) {
      return invalid_argument(
          concat("'inference_group_ranks' holds rank ", rank, ", which is not one of 'ranks'"));
    }
  }
  return request;
}

}  // namespace ckpt

// What callers of the service send: paths and bodies, read and checked. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"
#include "http/endpoint.h"
#include "http/engine_answer.h"
#include "http/engine_client.h"

namespace ckpt {

/// "a%20b" -> "a b". Refuses a '%' without two hexadecimal digits.
Result<std::string> percent_decoded(std::string_view text);

/// The name of a checkpoint out of a segment of a path: decoded, not empty, at most 255 bytes of
/// UTF-8 without control characters.
Result<std::string> checkpoint_name(std::string_view segment);

/// {"files": [PATH, ...]}
struct FilesRequest {
  std::vector<std::string> files;
};
Result<FilesRequest> parse_files_request(std::string_view body);

/// Whose call an update makes, and where. The field's callers give a whole URL.
struct UpdateTarget {
  EngineKind kind = EngineKind::kVllm;
  Endpoint endpoint;
  std::string path;   ///< of vLLM's form of the call where it is another than /collective_rpc
  std::string query;  ///< with its '?'; may be empty
};
/// A URL whose path ends in /update_weights_from_ipc is SGLang's, one that ends in /update_weights
/// is vLLM's own weight transfer, any other one, "/" too, is given vLLM's /collective_rpc form. A
/// fragment is nothing that is sent. With `uds`, the host of `url` is not looked at, and may be
/// missing.
Result<UpdateTarget> parse_update_target(const std::string& url, const std::string& uds);

/// {"ranks": [], "update_url": null, "inference_group_ranks": [], "timeout": 300.0, "uds": null},
/// all of them optional, and of ours: "weight_version", "reset_prefix_cache", "pause".
struct UpdateRequest {
  std::vector<int> ranks;  ///< empty: all
  std::optional<UpdateTarget> target;
  std::vector<int> group;  ///< ranks of the instance behind `target`; empty: all recipients
  double timeout_seconds = 300;
  EngineUpdateOptions options;
};
/// Refuses an unknown member: one that is misspelt would mean "all ranks".
Result<UpdateRequest> parse_update_request(std::string_view body, int world_size);

}  // namespace ckpt

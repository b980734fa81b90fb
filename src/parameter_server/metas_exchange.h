// The gather of metas: layouts travel once, under their hash, and are remembered; instance data
// travel every time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "checkpoint/catalog.h"
#include "checkpoint/metas.h"
#include "control/control_client.h"

namespace ckpt {

/// What a rank has given to the hub and taken from it. A layout that it knows costs nothing.
struct MetasTraffic {
  std::uint64_t layouts_sent = 0, layouts_received = 0;
  std::uint64_t layout_bytes = 0;    ///< sent and received
  std::uint64_t instance_bytes = 0;  ///< sent and received
};

/// One thread at a time.
class MetasExchange {
 public:
  /// Collective over all ranks of the job. `mine` is what this rank holds (an empty layout where it
  /// holds nothing).
  Result<std::shared_ptr<const Catalog>> gather(ControlClient& control,
                                                const std::string& checkpoint_name, RankMetas mine,
                                                Deadline deadline, AbortSignal* abort = nullptr);

  /// Since this was made.
  const MetasTraffic& traffic() const { return traffic_; }

 private:
  Result<std::shared_ptr<const Layout>> layout(ControlClient& control, const LayoutHash& hash,
                                               Deadline deadline, AbortSignal* abort);

  std::map<LayoutHash, std::shared_ptr<const Layout>> known_;
  std::set<LayoutHash> published_;
  MetasTraffic traffic_;
};

}  // namespace ckpt

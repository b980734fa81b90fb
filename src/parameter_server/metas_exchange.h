// The gather of metas: layouts travel once, under their hash, and are remembered; instance data
// travel every time.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "checkpoint/catalog.h"
#include "checkpoint/metas.h"
#include "control/control_client.h"

namespace ckpt {

/// One thread at a time.
class MetasExchange {
 public:
  /// Collective over all ranks of the job. `mine` is what this rank holds (an empty layout where it
  /// holds nothing).
  Result<std::shared_ptr<const Catalog>> gather(ControlClient& control,
                                                const std::string& checkpoint_name, RankMetas mine,
                                                Deadline deadline);

 private:
  Result<std::shared_ptr<const Layout>> layout(ControlClient& control, const LayoutHash& hash,
                                               Deadline deadline);

  std::map<LayoutHash, std::shared_ptr<const Layout>> known_;
  std::set<LayoutHash> published_;
};

}  // namespace ckpt

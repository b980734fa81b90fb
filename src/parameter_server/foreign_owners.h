// Owners of another job, whose metas were loaded: their memory is read, and nothing else is known
// of them. In the catalog they are the ranks behind those of this job, which own nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint/catalog.h"
#include "checkpoint_engine/status.h"
#include "parameter_server/pass_messages.h"
#include "transport/transport.h"

namespace ckpt {

/// Rank r of `metas` becomes rank world_size + r. Errors as of Catalog::build and
/// check_places (foreign_places.h), for owners that are to be read by `transport_kind`; they call
/// the owners by foreign_label.
Result<std::shared_ptr<const Catalog>> catalog_of_foreign_owners(const Metas& metas, int world_size,
                                                                 std::string_view transport_kind);

/// Of a rank that would have to read from others.
Status no_transport(int rank);

/// "rank 1 (10.0.0.7) of the loaded metas", or "... of the loaded metas; file 2" where several
/// were joined. `metas` are those of the catalog, in which `rank` counts.
std::string foreign_label(const Metas& metas, int rank, int world_size);

/// Asks those owners all at once whether they live and still hold what the metas say; those that
/// hold nothing are not asked. Returns who must not be read. A dead or restarted owner says so at
/// once (its host does); one that is silent has some seconds.
std::vector<LostOwner> ask_owners(Transport& transport, const Catalog& catalog,
                                  std::span<const int> owners, int world_size, Deadline deadline,
                                  AbortSignal& abort);

/// What is left where every tensor has a copy elsewhere; else the reason of the owner that held
/// the only one, with the tensor's name.
Result<std::shared_ptr<const Catalog>> catalog_without(const Catalog& catalog,
                                                       std::span<const LostOwner> lost);

}  // namespace ckpt

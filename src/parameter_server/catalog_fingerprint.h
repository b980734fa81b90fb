// One number over everything in a catalog that a plan and its checks depend on.
#pragma once

#include <cstdint>

#include "checkpoint/catalog.h"

namespace ckpt {

/// Layouts, places and digests of all ranks. Equal on all ranks that gathered the same metas.
std::uint64_t catalog_fingerprint(const Catalog& catalog);

}  // namespace ckpt

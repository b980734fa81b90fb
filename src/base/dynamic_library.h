// Libraries found at run time (NCCL, libibverbs): absent is an answer, not a crash.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// A dlopen'ed library. Never closed: the libraries we load keep threads and exit handlers of their
/// own.
class DynamicLibrary {
 public:
  /// The first of `names` that the process has loaded already, else the first that can be loaded.
  static Result<DynamicLibrary> open(const std::vector<std::string>& names);

  const std::string& name() const { return name_; }
  template <typename Function>
  Result<Function*> function(const char* symbol) const {
    CKPT_ASSIGN_OR_RETURN(void* address, find(symbol));
    return reinterpret_cast<Function*>(address);
  }

 private:
  Result<void*> find(const char* symbol) const;
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace ckpt

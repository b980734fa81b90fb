#include "base/dynamic_library.h"

#include <dlfcn.h>

#include "base/strings.h"

namespace ckpt {

Result<DynamicLibrary> DynamicLibrary::open(const std::vector<std::string>& names) {
  DynamicLibrary library;
  std::string problems;
  for (const int extra : {RTLD_NOLOAD, 0}) {
    for (const std::string& name : names) {
      library.handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | extra);
      if (library.handle_ != nullptr) {
        library.name_ = name;
        return library;
      }
      const char* text = ::dlerror();
      if (extra == 0 && text != nullptr) problems += concat(problems.empty() ? "" : "; ", text);
    }
  }
  return unavailable(concat("cannot load ", join(names, " or "), ": ", problems));
}

Result<void*> DynamicLibrary::find(const char* symbol) const {
  void* address = ::dlsym(handle_, symbol);
  if (address == nullptr) return unsupported(concat(name_, " has no function ", symbol));
  return address;
}

}  // namespace ckpt

#include "transport/ucx/ucx_inspect.h"

#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/strings.h"
#include "transport/ucx/context.h"

namespace ckpt {

Result<UcxAbilities> inspect_ucx(const UcxOptions& options) {
  CKPT_ASSIGN_OR_RETURN(const auto context, ucx::Context::create(options));
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return resource_exhausted("no memory for what ucx says of itself");
  ucp_context_print_info(context->get(), stream);
  std::fclose(stream);
  UcxAbilities abilities;
  abilities.version = ucp_get_version_string();
  abilities.memory = context->memory_kinds();
  abilities.reads_into_gpus = context->reads_into_gpus();
  // "#   resource 0 : md 0  dev 0  flags -- tcp/eth0"
  for (const std::string& line : split(std::string_view(text, size), '\n')) {
    if (line.find("resource") == line.npos) continue;
    const std::size_t begin = line.find_last_of(' ');
    const std::string name = line.substr(begin + 1);
    if (name.find('/') != name.npos) abilities.resources.push_back(name);
  }
  std::free(text);
  std::ranges::sort(abilities.resources);
  return abilities;
}

}  // namespace ckpt

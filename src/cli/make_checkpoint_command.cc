#include "cli/make_checkpoint_command.h"

#include "base/strings.h"
#include "cli/terminal.h"

namespace ckpt {

int run(const MakeCheckpointCommand& command) {
  const auto tensors = model_tensors(command.like, command.model);
  if (!tensors) return refuse(tensors.status());
  const Status written = write_synthetic_checkpoint(command.folder, *tensors, command.content);
  if (written.code() == StatusCode::kAlreadyExists) return refuse(written);
  if (!written) return fail(written);
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : *tensors) bytes += tensor.bytes;
  say(concat(command.folder, ": ", tensors->size(), " tensors like ", command.like, ", ",
             format_bytes(bytes)));
  return kExitOk;
}

}  // namespace ckpt

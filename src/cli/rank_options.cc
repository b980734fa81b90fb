#include "cli/rank_options.h"

#include "cli/secret_file.h"

namespace ckpt {

Result<ParameterServerOptions> server_options(const RankOptions& given) {
  ParameterServerOptions options;
  options.rendezvous = given.rendezvous;
  options.advertise = given.advertise;
  options.external_hub = given.external_hub;
  if (!given.job.empty()) options.job = given.job;
  CKPT_ASSIGN_OR_RETURN(options.secret, read_secret_file(given.secret_file));
  options.join_timeout_seconds = given.join_timeout_seconds;
  options.heartbeat_timeout_seconds = given.heartbeat_timeout_seconds;
  options.device = given.device;
  options.collective = given.collective;
  options.release_communicators = given.release_communicators;
  options.keep_buffers = given.keep_buffers;
  options.overlap = given.overlap;
  options.ring_bytes = given.ring_bytes;
  options.bucket_bytes = given.bucket_bytes;
  options.chunk_bytes = given.chunk_bytes;
  return options;
}

}  // namespace ckpt

#include "worker/rescue.h"

#include <utility>
#include <vector>

#include "worker/closer.h"
#include "worker/wire.h"

namespace ckpt {

Status rescue_worker(const std::string& job, const std::string& address, int rank,
                     const Status& cause, Deadline deadline) {
  ChannelOptions options;
  options.rank = rank;
  CKPT_ASSIGN_OR_RETURN(auto wire, bind_stock_wire(options, address));
  wire->start_abort(cause);
  ClosingChannel channel;
  channel.job = job;
  channel.rank = rank;
  channel.wires.push_back(std::move(wire));
  channel.deadline = deadline;
  hand_to_closer(std::move(channel));
  return Status::ok();
}

}  // namespace ckpt

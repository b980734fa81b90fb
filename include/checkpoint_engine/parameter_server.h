// The sending side: one ParameterServer per rank holds a part of a checkpoint in host memory and
// puts it into running inference engines. All ranks of a job make the same calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"
#include "checkpoint_engine/transfer_engine.h"

namespace [[gnu::visibility("default")]] ckpt {

struct ParameterServerOptions {
  /// Unset: from torchrun, Open MPI or Slurm variables; a single process where none is set.
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
  /// "host:port" of the hub. Empty: MASTER_ADDR and MASTER_PORT + 1. Rank 0 runs the hub unless
  /// `external_hub`.
  std::string rendezvous;
  bool external_hub = false;
  std::string job = "default";
  std::string secret;
  /// Ranks of equal host ids share memory; ranks of different ones speak over the network only.
  /// Empty: PS_HOST_ID, else this machine's own.
  std::string host_id;
  /// Address or interface under which other hosts read this rank's memory, and through which it
  /// reads theirs. Empty: PS_HOST_IP, else the interface that routes to the hub.
  std::string advertise;
  /// Reads other ranks' memory in the place of UCX; null: UCX. All ranks, and the jobs whose metas
  /// are loaded, need the same kind.
  std::shared_ptr<TransferEngine> transfer_engine;
  /// How long to wait for the next rank that joins, and for the hub; the error names those that did
  /// not come. 0: as heartbeat_timeout_seconds.
  double join_timeout_seconds = 0;
  /// Silence after which a rank that has joined is lost, and all others fail.
  double heartbeat_timeout_seconds = 5;
  /// How long rank 0, which runs the hub, waits in its destructor for the others to leave.
  double hub_linger_seconds = 600;
  /// After a failed update: how long a worker whose engine was called already may take to connect
  /// and hear of it; the destructor waits for that, and up to collective_timeout_seconds for
  /// workers that are busy or stopped.
  double late_worker_seconds = 5;
  /// How long register, gather and barrier wait for other ranks.
  double collective_timeout_seconds = 600;
  /// How long unregister_checkpoint and the destructor wait for other jobs that are reading this
  /// rank's memory. Afterwards their reads fail.
  double reader_patience_seconds = 60;

  std::string device = "auto";  ///< "auto", "host", "cuda"
  /// How weights spread over the ranks of a host: "auto"; "peer": every rank has a ring of its own
  /// and pulls from the others (what "auto" is on GPUs); "chain": on device host one ring for all
  /// (what "auto" is there), on cuda every rank as a host of its own, by the transport and through
  /// host memory; "nccl" (cuda, a GPU for each rank): group calls of NCCL, which must be installed;
  /// between hosts, too, where every owner is a recipient.
  std::string collective = "auto";
  /// NCCL's communicators are kept between updates, with their device memory, unless this is set.
  bool release_communicators = false;
  /// Ring, staging and what is opened of other ranks stay between updates of the same recipients
  /// (where all of them have this set), which saves some milliseconds of each and costs
  /// UpdateReport::kept_bytes of device memory; given back when the checkpoint that used them last
  /// is unregistered, when an update fails, and with the server.
  bool keep_buffers = false;
  /// "off": nothing of a bucket enters the ring before the bucket before it is loaded, for machines
  /// where copies and network compete; the ring is half as large then. "auto" is "on".
  std::string overlap = "auto";
  /// 0: 1 GiB on cuda; 64 MiB on host, where a ring that stays in the caches is twice as fast
  /// (docs/benchmarks.md). Grows to the largest tensor.
  std::uint64_t ring_bytes = 0;
  std::uint64_t bucket_bytes = 0;  ///< 0: PS_MAX_BUCKET_SIZE_GB, else half of the ring
  std::uint64_t chunk_bytes = 0;   ///< 0: 32 MiB on cuda, 8 MiB on host
  double memory_fraction = 0;      ///< 0: PS_MEM_FRACTION, else 0.9
  int load_threads = 0;  ///< for registration; 0: the processors of this host divided by its ranks
};

/// A tensor in the caller's memory, or in that of a GPU where the device is cuda (complete there:
/// no kernel still writes it); copied during register_checkpoint.
struct MemoryTensor {
  TensorInfo info;
  const std::byte* data;
};
/// A tensor in a file.
struct FileTensor {
  TensorInfo info;
  std::string path;
  std::uint64_t file_offset;
};

/// For safetensors in /dev/shm, whose pages are host memory already. In the shared pool: kRead.
enum class SharedMemoryFiles {
  kRead,          ///< copied like any other file, which they need not outlive
  kUse,           ///< pinned where they are; nobody may change them until unregister
  kUseAndRemove,  ///< the same; gather_metas removes their names once all ranks have registered
};

struct Registration {
  std::vector<FileTensor> files;
  std::vector<MemoryTensor> tensors;  ///< win over files of the same name
  bool use_shared_pool = false;  ///< reuse the memory of the checkpoint registered this way before
  SharedMemoryFiles shared_memory_files = SharedMemoryFiles::kRead;
};

/// Key of a worker ("GPU-<uuid>", "CPU-<i>") and where its rank waits for it.
struct WorkerAddress {
  std::string key;
  std::string address;
};

/// Given to an engine call, so that a call that waits for an engine can be ended early.
class EngineCallContext {
 public:
  virtual ~EngineCallContext() = default;
  virtual int rank() const = 0;
  virtual double remaining_seconds() const = 0;
  virtual bool cancelled() const = 0;
  /// Runs `stop` once when the update fails, at once if it has failed already; replaces the one
  /// before. On any thread, also on the one that beats: `stop` must return soon.
  virtual void on_cancel(std::function<void()> stop) = 0;
};

/// Tells an engine to update, and returns when the engine has answered: on every recipient, in a
/// thread of its own, with the entries of all ranks of the job in rank order (empty strings for
/// ranks that are no recipients). Most ranks have nobody to tell and return at once (see
/// engine_instances). An error fails the update on every rank, as its cause.
using EngineCall =
    std::function<Status(const std::vector<WorkerAddress>& all_ranks, EngineCallContext&)>;

struct UpdateOptions {
  std::vector<int> recipients;   ///< empty: all ranks
  int instance_size = 0;         ///< 0: PS_INSTANCE_SIZE, else all recipients are one instance
  double timeout_seconds = 300;  ///< for the whole update
  bool verify = true;
  /// True: an engine call returns only when its engine has answered, so that a success without a
  /// connected worker is an error at once. False where a call merely hands the addresses on.
  bool engine_answer_means_done = false;
  /// True: every rank of the job calls update(), also those that are no recipients; they wait for
  /// the end and share the outcome. False: only recipients call; the memory of the others is read
  /// without their doing. unregister_checkpoint there waits for these readers as for those of other
  /// jobs.
  bool all_ranks_call = true;
  /// Bytes that have arrived and been loaded at this rank's worker so far, of the total. On a
  /// thread of the update.
  std::function<void(std::uint64_t loaded, std::uint64_t total)> progress;
};

struct StageReport {
  std::string name;  ///< "plan", "fill", "deliver", ...: docs/report.md has them all
  double seconds = 0;
  std::uint64_t bytes = 0;
};

/// What one rank did in one update.
struct UpdateReport {
  int rank = 0;
  std::uint64_t epoch = 0;
  std::string checkpoint_name;
  std::vector<StageReport> stages;
  std::uint64_t total_tensors = 0, total_bytes = 0;  ///< of the checkpoint
  std::uint64_t filled_bytes = 0;                    ///< copied out of this rank's pool
  std::uint64_t received_bytes = 0;                  ///< taken from other ranks' memory
  std::uint64_t loaded_bytes = 0, loaded_tensors = 0,
                verified_tensors = 0;  ///< acknowledged by this rank's worker
  std::uint64_t buckets = 0;
  int passes = 0;
  double first_bucket_seconds =
      0;                      ///< from the engine's call to the first bucket given to the worker
  double commit_seconds = 0;  ///< how long the engine was held: from its call to the end
  double update_seconds = 0;  ///< prepare and commit
  std::string wire;           ///< "native", "stock", or empty where this rank has no worker
  std::uint64_t ring_bytes = 0, staging_bytes = 0;
  std::uint64_t communicator_bytes = 0;  ///< device memory of NCCL; 0 without
  /// Device memory of this rank's CUDA context, which is there from the start of the server to its
  /// end; 0 where the process had one before.
  std::uint64_t context_bytes = 0;
  /// Of ring and staging: allocated in this update, and kept for the next.
  std::uint64_t allocated_bytes = 0, kept_bytes = 0;
  /// Streams with their events, and tables of digests (device `host`: sets of threads), that were
  /// made for this update. 0 from the second on: they live as long as the server.
  std::uint64_t streams_made = 0;
};

/// An update that is ready to run and has touched no engine yet. Dropping it gives it up on every
/// rank. Must not outlive its server.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
};

/// Thread-safe; register, gather, update and unregister of one server run one after the other.
class ParameterServer {
 public:
  /// Joins the job. Returns when all ranks have.
  static Result<std::unique_ptr<ParameterServer>> create(ParameterServerOptions options);
  /// Leaves the job; ends what is running.
  virtual ~ParameterServer() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Reads or copies this rank's part into host memory, with a digest of every tensor. No other
  /// rank is asked. A name that is registered already is refused and stays as it is. Not
  /// collective.
  virtual Status register_checkpoint(const std::string& name, const Registration& part) = 0;
  /// Waits for readers of other jobs, and gives the memory back, which may go on in the background;
  /// a register_checkpoint right behind takes it over, still pinned, where it needs as much, and
  /// waits for its end else. The shared pool is kept for the next
  /// checkpoint unless `force`. Unknown names are kNotFound, unless `force`.
  virtual Status unregister_checkpoint(const std::string& name, bool force = false) = 0;
  /// Collective: every rank learns all tensors of `name`.
  virtual Status gather_metas(const std::string& name) = 0;
  /// The gathered metas as JSON with a version; kFailedPrecondition before gather_metas.
  virtual Result<std::string> export_metas() const = 0;
  /// Takes metas that another job has exported: updates then read out of the memory of its ranks,
  /// which must still run and hold the checkpoint. A JSON list of such metas is that of several
  /// jobs that hold the same checkpoint: they share the work, and stand in for each other. All
  /// ranks of this job load the same text. For updates of it any name will do.
  virtual Status load_metas(const std::string& json) = 0;
  /// Collective, after load_metas: the ranks keep in host memory what updates bring of the loaded
  /// checkpoint, a share each, and offer it to other jobs, from now on and while it is still
  /// coming. export_metas then gives the metas of that: a job that loads them follows this one, so
  /// that the first owners give every byte once however many jobs follow each other. Ends with
  /// unregister_checkpoint, load_metas or gather_metas, which wait for readers.
  virtual Status offer_loaded() = 0;
  /// Of the metas that were gathered or loaded last; empty: none.
  virtual std::string checkpoint_name() const = 0;

  /// Collective over the participants: plans, allocates, binds, opens, and fills the first chunks.
  /// No engine is called.
  virtual Result<std::unique_ptr<PreparedUpdate>> prepare(const std::string& name,
                                                          const UpdateOptions& options) = 0;
  /// Collective: calls the engines and updates them. The update is over on return, on every rank,
  /// with the same outcome.
  virtual Result<UpdateReport> commit(std::unique_ptr<PreparedUpdate> update,
                                      const EngineCall& call) = 0;
  /// Gives a prepared update up on every rank.
  virtual void abort(std::unique_ptr<PreparedUpdate> update, const Status& cause) = 0;
  /// prepare and commit.
  Result<UpdateReport> update(const std::string& name, const EngineCall& call,
                              const UpdateOptions& options = {});

  /// Ends the calls of this server that other threads wait in, with `cause`: an update on every
  /// rank, a registration here, and what waits for its turn before it does anything. Does not wait.
  virtual void cancel(const Status& cause) = 0;

  /// Collective over all ranks of the job.
  virtual Status barrier(double timeout_seconds) = 0;
  /// Collective: `mine` of every rank, in rank order.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine,
                                                      double timeout_seconds) = 0;
};

/// The instance whose first rank is `rank`, as the key -> address map its engine is given; empty
/// for every other rank. Instances are runs of `instance_size` recipients (0: PS_INSTANCE_SIZE,
/// else all are one).
Result<std::map<std::string, std::string>> engine_instance(
    const std::vector<WorkerAddress>& all_ranks, int rank, int instance_size);

}  // namespace ckpt

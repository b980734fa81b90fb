#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/strings.h"
#include "checkpoint/model_shapes.h"

namespace ckpt {
namespace {

/// An option with a size like "512MiB". `least` keeps a forgotten unit from becoming a size of a
/// few bytes.
CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& bytes,
                      const std::string& text, std::uint64_t least = 1) {
  return app
      .add_option_function<std::string>(
          name,
          [&bytes, name, least](const std::string& value) {
            const auto parsed = parse_bytes(value);
            if (!parsed) throw CLI::ValidationError(name, parsed.status().message());
            if (*parsed < least) {
              throw CLI::ValidationError(
                  name, concat(value, " is less than ", format_bytes(least), "; give a unit"));
            }
            bytes = *parsed;
          },
          text)
      ->type_name("SIZE");
}

const CLI::Range kAnySeconds(0.001, 1e9);

/// What `update` and `serve` say alike of their job.
void add_job(CLI::App& app, RankOptions& o) {
  app.add_option("--rendezvous", o.rendezvous,
                 "HOST:PORT of the hub (default: MASTER_ADDR and MASTER_PORT + 1)");
  app.add_option(
      "--advertise", o.advertise,
      "address or interface of this host for reading and being read; TCP then uses that "
      "interface only (default: PS_HOST_IP, else what routes to the hub, else, for a hub "
      "on the loopback interface, to other hosts)");
  app.add_flag("--external-hub", o.external_hub,
               "the hub runs already (checkpoint-engine hub), rank 0 starts none");
  app.add_option("--job", o.job, "name of the job; ranks of different jobs refuse each other");
  app.add_option("--secret-file", o.secret_file, "file with a secret that all of the job share");
  app.add_option(
         "--join-timeout", o.join_timeout_seconds,
         "seconds to wait for the next rank that joins (default: as --heartbeat-timeout for "
         "update, 60 for serve, whose ranks are started one by one)")
      ->check(kAnySeconds);
  app.add_option("--heartbeat-timeout", o.heartbeat_timeout_seconds,
                 "seconds of silence after which a rank that has joined is lost")
      ->check(kAnySeconds)
      ->capture_default_str();
}

void add_update_job(CLI::App& app, UpdateCommand& o) {
  app.add_option("--nproc", o.nproc,
                 "launch so many ranks on this host; without it this process is one rank, under "
                 "torchrun, mpirun or srun")
      ->check(CLI::Range(0, 4096));
  add_job(app, o);
  app.add_flag("--launched", o.launched)->group("");  // what the launcher tells its ranks
  app.add_option("--timeout", o.timeout_seconds,
                 "seconds for an update, for its engines to be ready, and for a gather")
      ->check(kAnySeconds)
      ->capture_default_str();
  app.add_option("--register-timeout", o.register_timeout_seconds,
                 "seconds that ranks wait for the one that reads its files slowest")
      ->check(kAnySeconds)
      ->capture_default_str();
}

void add_update_engine(CLI::App& app, UpdateCommand& o) {
  app.add_option(
         "--engine", o.engine,
         "whose HTTP calls to make: vllm (through a worker extension), vllm-native (through "
         "its own weight transfer, backend checkpoint_engine), sglang; none: nobody is "
         "called, the workers' addresses are printed")
      ->check(CLI::IsMember({"vllm", "vllm-native", "sglang", "none"}))
      ->capture_default_str();
  app.add_option("--endpoint", o.endpoints,
                 "http://HOST:PORT of the engine; one for each instance, or one where every host "
                 "has its instance there (default http://localhost:19730)")
      ->delimiter(',');
  app.add_option("--uds", o.uds, "Unix socket of the engine, instead of --endpoint")
      ->delimiter(',');
  app.add_option("--inference-parallel-size", o.inference_parallel_size,
                 "workers of an instance (default: PS_INSTANCE_SIZE, else ranks / endpoints)")
      ->check(CLI::PositiveNumber);
  app.add_option("--api-key-file", o.api_key_file, "file with the engine's API key");
  app.add_flag("--reset-prefix-cache", o.reset_prefix_cache,
               "vllm: drop cached prefixes afterwards");
  app.add_option("--weight-version", o.weight_version, "name of the new weights for the engine");
  app.add_option("--pause", o.pause, "vllm: pause the engine during the update, in this mode")
      ->check(CLI::IsMember({"abort", "wait", "keep"}));
}

/// What `update` and `serve` say alike of how bytes move.
void add_transfer(CLI::App& app, RankOptions& o) {
  app.add_option("--device", o.device, "where the engine's weights live")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
  app.add_option(
         "--collective", o.collective,
         "how bytes spread over the ranks of a host: nccl on device cuda only; chain by the "
         "transport, on cuda through host memory (between hosts auto and peer do so too)")
      ->check(CLI::IsMember({"auto", "peer", "nccl", "chain"}))
      ->capture_default_str();
  app.add_flag("--release-communicators", o.release_communicators,
               "with nccl: free their device memory after each update");
  app.add_flag("--keep-buffers", o.keep_buffers,
               "keep ring, staging and what is opened of other ranks between updates");
  app.add_option("--overlap", o.overlap,
                 "off: a bucket enters the ring when the one before it is loaded")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  add_size(app, "--ring-size", o.ring_bytes,
           "memory shared with a worker (default 1GiB on cuda, 64MiB on host)", 4096);
  add_size(app, "--bucket-size", o.bucket_bytes,
           "most bytes that a worker loads at once (default: PS_MAX_BUCKET_SIZE_GB, else half of "
           "the ring)",
           4096);
  add_size(app, "--chunk-size", o.chunk_bytes,
           "unit of copying (default 32MiB on cuda, 8MiB on host)", 4096);
}

void add_update_transfer(CLI::App& app, UpdateCommand& o) {
  app.add_option("--update-method", o.update_method,
                 "broadcast: all ranks; p2p: the first instance, out of the others' memory; all: "
                 "both in turn")
      ->check(CLI::IsMember({"broadcast", "p2p", "all"}))
      ->capture_default_str();
  app.add_option("--split", o.split, "deal single tensors or whole files to the ranks")
      ->check(CLI::IsMember({"tensors", "files"}))
      ->capture_default_str();
  app.add_flag("--in-place", o.in_place,
               "use files in /dev/shm where they lie, without a second copy in memory; they stay, "
               "and must not be changed meanwhile");
  add_transfer(app, o);
  app.add_flag("--verify,!--no-verify", o.verify,
               "workers check every tensor's digest (on by default)");
  app.add_option("--custom-dist", o.custom_dist, "accepted, without effect");
}

void add_update(CLI::App& app, UpdateCommand& o) {
  app.add_option("--checkpoint-path", o.checkpoint_path,
                 "folder or file of safetensors that the ranks register");
  app.add_option("--checkpoint-name", o.checkpoint_name,
                 "default: what the loaded metas say, else my-checkpoint-iter-0");
  app.add_option("--save-metas-file", o.save_metas_file,
                 "where rank 0 writes the metas, for other jobs to read this one's memory");
  app.add_option("--load-metas-file", o.load_metas_files,
                 "metas of another job that runs: its ranks' memory is read, nothing is "
                 "registered; repeat it, "
                 "or separate by commas, for jobs that hold the same checkpoint and stand in for "
                 "each other")
      ->delimiter(',');
  app.add_flag("--fan-out", o.fan_out,
               "with --load-metas-file: keep what arrives in host memory and offer it to further "
               "jobs meanwhile; --save-metas-file then says where");
  app.add_option("--sleep-time", o.sleep_seconds,
                 "seconds to go on serving the checkpoint to other jobs afterwards")
      ->check(CLI::NonNegativeNumber);
  add_update_engine(app, o);
  add_update_transfer(app, o);
  add_update_job(app, o);
  app.add_option("--report", o.report_file, "where rank 0 writes what every rank did, as JSON");
  app.add_flag("--quiet", o.quiet, "say nothing but errors");
  app.add_option("--progress", o.progress, "bar on a terminal, lines elsewhere")
      ->check(CLI::IsMember({"auto", "bar", "lines", "none"}))
      ->capture_default_str();
}

void add_receive(CLI::App& app, ReceiveCommand& o) {
  app.add_option("--workers", o.workers, "workers of this instance")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  auto* const listen =
      app.add_option("--listen", o.listen, "HOST:PORT; port 0: a free one")->capture_default_str();
  app.add_option("--uds", o.uds, "a Unix socket instead")->excludes(listen);
  auto* const output = app.add_option("--output", o.output,
                                      "folder to write worker 0's weights into after each update");
  app.add_flag("--output-all", o.output_all, "every worker's weights, in folders worker-N of it")
      ->needs(output);
  app.add_option("--expect", o.expect,
                 "checkpoint that all workers must hold after each update, byte for byte; if not, "
                 "or if the last update failed, exit with 1");
  app.add_option("--exit-after", o.exit_after, "exit after so many updates that succeeded")
      ->check(CLI::PositiveNumber);
  app.add_option("--ready-file", o.ready_file, "written with the address once calls are taken");
  app.add_option("--timeout", o.timeout_seconds, "seconds without a word from the rank")
      ->check(kAnySeconds)
      ->capture_default_str();
  app.add_flag("--verify,!--no-verify", o.verify, "check every tensor's digest (on by default)");
  app.add_option("--secret-file", o.secret_file, "file with the job's secret");
  app.add_flag("--quiet", o.quiet, "say nothing but errors and --expect's result");
}

void add_make_checkpoint(CLI::App& app, MakeCheckpointCommand& o) {
  std::vector<std::string> names;
  for (const auto name : model_names()) names.emplace_back(name);
  app.add_option("--like", o.like, "published model")->required()->check(CLI::IsMember(names));
  app.add_option("folder", o.folder, "where to write it")->required();
  app.add_option("--layers", o.model.layers, "decoder layers (default: the model's)")
      ->check(CLI::PositiveNumber);
  app.add_option("--experts", o.model.experts, "routed experts of a layer (default: the model's)")
      ->check(CLI::PositiveNumber);
  app.add_option("--shrink", o.model.shrink, "divide widths by this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", o.content.seed, "bytes are a function of it")->capture_default_str();
  add_size(app, "--shard-size", o.content.shard_bytes, "most data of a file (default 4.5GB)", 4096);
}

void add_inspect(CLI::App& app, InspectCommand& o) {
  app.add_option("path", o.paths, "files or folders of safetensors");
  app.add_flag("--network", o.network,
               "instead of files: devices, what ranks would use, what this UCX can do");
  app.add_option("--ranks", o.ranks,
                 "with --network: ranks on this host (default: its GPUs, else 8)")
      ->check(CLI::Range(1, 1024));
  app.parse_complete_callback([&o] {
    if (o.paths.empty() && !o.network) throw CLI::RequiredError("path or --network");
    if (!o.paths.empty() && o.network) throw CLI::ExcludesError("path", "--network");
  });
  app.add_flag("--json", o.json, "everything, as a JSON array");
  app.add_flag("--tensors", o.list_tensors, "list every tensor");
}

void add_serve(CLI::App& app, ServeCommand& o) {
  auto* const uds = app.add_option(
      "--uds", o.uds, "Unix socket to serve on; {rank} in it stands for this process's rank");
  app.add_option("--listen", o.listen, "HOST:PORT instead; port 0: a free one")->excludes(uds);
  app.add_option("--token-file", o.token_file,
                 "file with the token that callers must send; needed unless --listen is loopback");
  app.add_option("--allow-path", o.allow_paths,
                 "register files only below this folder; may be given more than once")
      ->delimiter(',');
  app.add_option("--api-key-file", o.api_key_file, "file with the API key of the engines");
  app.add_option("--engine-endpoint", o.engine_endpoints,
                 "an engine that is sent the API key (default: those on this machine; needed with "
                 "--listen where there is no --token-file)")
      ->delimiter(',');
  app.add_option("--ready-file", o.ready_file, "written with the address once calls are taken");
  add_job(app, o);
  app.add_option("--timeout", o.timeout_seconds, "seconds for the other ranks to come to a gather")
      ->check(kAnySeconds)
      ->capture_default_str();
  add_transfer(app, o);
  app.add_flag("--quiet", o.quiet, "say nothing but errors");
}

void add_hub(CLI::App& app, HubCommand& o) {
  app.add_option("--listen", o.listen, "HOST:PORT; port 0: a free one")->required();
  app.add_option("--job", o.job, "the only job that may join (default: the first to come)");
  app.add_option("--world-size", o.world_size, "its ranks (default: as the first says)")
      ->check(CLI::PositiveNumber);
  app.add_option("--secret-file", o.secret_file, "file with the job's secret");
  app.add_option("--heartbeat-timeout", o.heartbeat_timeout_seconds,
                 "seconds of silence after which a rank is lost")
      ->check(kAnySeconds)
      ->capture_default_str();
}

void add_bench(CLI::App& app, BenchCommand& o) {
  app.add_option("--device", o.device, "what to measure: all GPUs that are visible, or CPU memory")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
  add_size(app, "--size", o.bytes, "of each buffer (default 1GiB)", 64 << 20);
  app.add_option("--seconds", o.seconds, "for each figure")
      ->check(kAnySeconds)
      ->capture_default_str();
  app.add_option("--threads", o.threads, "for copies by processors (default: all, at most 16)")
      ->check(CLI::PositiveNumber);
  auto* const update = add_size(
      app, "--update-size", o.update_bytes,
      "of the checkpoint that is measured beside them (default 4GiB on GPUs, 256MiB on host)",
      1 << 20);
  app.add_flag("--no-update", o.no_update, "the machine alone")->excludes(update);
  app.add_flag("--json", o.json, "as JSON");
}

CommandLineText text_of(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const int code = app.exit(error, out, err);
  if (code == 0) return {out.str(), false};
  // The library adds a second line that points to --help; one line says it all.
  std::string text = err.str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return {concat("checkpoint-engine: error: ", trim(text), "\n"), true};
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CLI::App app("Puts new weights into running inference engines.", "checkpoint-engine");
  app.set_version_flag("--version", "checkpoint-engine " CKPT_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);

  UpdateCommand update;
  ReceiveCommand receive;
  MakeCheckpointCommand make_checkpoint;
  InspectCommand inspect;
  HubCommand hub;
  BenchCommand bench;
  ServeCommand serve;
  auto* const update_app = app.add_subcommand("update", "update engines from a checkpoint");
  add_update(*update_app, update);
  auto* const receive_app =
      app.add_subcommand("receive", "be an instance that takes weights into its own memory");
  add_receive(*receive_app, receive);
  auto* const make_app = app.add_subcommand(
      "make-checkpoint", "write a checkpoint shaped like a published model, with made-up bytes");
  add_make_checkpoint(*make_app, make_checkpoint);
  auto* const inspect_app =
      app.add_subcommand("inspect", "what files hold; exit code 2 when one is not valid");
  add_inspect(*inspect_app, inspect);
  auto* const hub_app = app.add_subcommand("hub", "run the control plane of a job on its own");
  add_hub(*hub_app, hub);
  auto* const bench_app =
      app.add_subcommand("bench", "measure the rates of this machine that bound an update");
  add_bench(*bench_app, bench);
  auto* const serve_app =
      app.add_subcommand("serve", "be one rank of a job that is told over HTTP what to do");
  add_serve(*serve_app, serve);
  for (auto* const sub : app.get_subcommands({})) {
    sub->set_version_flag("--version", "checkpoint-engine " CKPT_VERSION);
    for (auto* const option : sub->get_options()) {
      // Lists take them all; of everything else the last one counts.
      if (option->get_expected_max() == 1) option->take_last();
    }
  }

  try {
    // The library takes arguments from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return text_of(app, error);
  }
  if (update_app->parsed()) return update;
  if (receive_app->parsed()) return receive;
  if (make_app->parsed()) return make_checkpoint;
  if (inspect_app->parsed()) return inspect;
  if (bench_app->parsed()) return bench;
  if (serve_app->parsed()) return serve;
  return hub;
}

}  // namespace ckpt

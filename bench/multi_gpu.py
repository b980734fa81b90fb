#!/usr/bin/env python3
"""Everything that is to be known of the GPUs of one host, in one call of under eight minutes: the machine's ceilings, updates
beside the field's package 0.4.2, `peer` beside `nccl` and what other choices cost, P2P to some ranks, and a rank that is
killed. One rank and one worker for each GPU that is found (with --device host: two of each, a dry run).

  bench/multi_gpu.py [--gpus N] [--gib 64] [--seconds 470] [--out FOLDER] [STEP...]

Steps (all of them, in this order, unless some are named):
  ceilings     of the machine
  nccl         alone: broadcasts by size, what a communicator takes
  nccl-memory  what explains that memory: a communicator under each of a dozen settings (80 s)
  trace        one update of each collective as a timeline: trace-COLLECTIVE.json, for chrome://tracing or Perfetto
  compare      with 0.4.2
  choices      `peer` beside `nccl`, overlap, rings, chunks
  p2p          to some ranks
  kill, kill-nccl, kill-hub   a rank dies in mid-update: with `peer`, with `nccl`, the rank with the hub
  nccl-hosts   `nccl` between ranks that each say to be a host of their own; one of them dies
  large        64 GiB, whatever --gib says
Each run has its own time limit; one that the remaining time does not hold is left out and named. FOLDER gets results.json,
results.md and log.txt."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BIN = next((folder for folder in (HERE.parent / "bin", HERE.parent / "build" / "bundle" / "bin") if folder.exists()),
           HERE.parent / "build" / "release" / "bin")
STOCK_WORKER = f"{sys.executable} {HERE / 'compare' / 'stock_worker.py'}"
STEPS = ("ceilings", "nccl", "nccl-memory", "trace", "compare", "choices", "p2p", "kill", "kill-nccl", "kill-hub", "nccl-hosts", "large")


def gpus_found():
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in found.splitlines())


class Run:
    def __init__(self, options):
        self.options = options
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = open(self.out / "log.txt", "w")
        self.end = time.monotonic() + options.seconds
        self.results = {"gpus": options.gpus, "ranks": options.ranks, "device": options.device, "gib": options.gib,
                        "machine": machine(), "runs": [], "left_out": []}

    def call(self, name, limit, command, environment=None):
        """The program's lines, or None: it failed, or there was no time for it."""
        left = self.end - time.monotonic()
        if left < min(limit, 20):
            self.results["left_out"].append({"run": name, "why": "no time"})
            return None
        set_here = [f"{variable}={value}" for variable, value in (environment or {}).items()]
        self.log.write(f"== {name}: {' '.join(map(str, set_here + command))}\n")
        self.log.flush()
        begin = time.monotonic()
        try:
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=self.log, text=True,
                                  timeout=min(limit, left), env=os.environ | (environment or {}))
        except subprocess.TimeoutExpired:
            self.results["left_out"].append({"run": name, "why": f"not done after {time.monotonic() - begin:.0f} s"})
            return None
        self.log.write(done.stdout)
        print(f"-- {name}: exit code {done.returncode} after {time.monotonic() - begin:.0f} s", flush=True)
        if done.returncode != 0:
            self.results["left_out"].append({"run": name, "why": f"exit code {done.returncode}, see log.txt"})
            return None
        return done.stdout

    def update(self, name, limit=60, ranks=None, environment=None, **settings):
        """One gpu_update; returns its figures (of a killed rank: two)."""
        file = self.out / "one.json"
        file.unlink(missing_ok=True)
        options = {"device": self.options.device, "gib": self.options.gib, "ranks": ranks or self.options.ranks,
                   "gpus": self.options.gpus, "shrink": self.options.shrink, "updates": 3, "experts": 1} | settings
        command = [BIN / "gpu_update", "--json", file]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        if self.call(name, limit, command, environment) is None:
            return []
        figures = [{"run": name} | json.loads(line) for line in file.read_text().splitlines()]
        file.unlink()
        self.results["runs"] += figures
        return figures


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    return {"gpus": gpus, "processors": os.cpu_count(), "kernel": os.uname().release, "date": time.strftime("%Y-%m-%d %H:%M")}


def ceilings(run):
    text = run.call("ceilings", 60, [BIN / "checkpoint-engine", "bench", "--json", "--no-update", "--device", run.options.device])
    if text:
        run.results["ceilings"] = json.loads(text)


def nccl(run):
    """Broadcasts of one root and of all, by size; and what a communicator takes."""
    if run.options.on_gpus:
        run.update("NCCL alone", nccl_alone=1, **SMALL)


# Of the parameters that the workers of a run allocate, which need nothing here.
SMALL = {"gib": 0.05, "shrink": 8}

# Each is read once by a process, so each gets processes of its own. Multicast (NVLS) stays as the machine has it.
NCCL_SETTINGS = (
    {},
    {"CUDA_MODULE_LOADING": "EAGER"},  # how much of it is the library's code
    {"NCCL_CUMEM_ENABLE": "0"},
    {"NCCL_RUNTIME_CONNECT": "0"},  # all algorithms are connected when it is made
    {"NCCL_ALGO": "Ring"},
    {"NCCL_PROTO": "Simple"},
    {"NCCL_MAX_CTAS": "2"},
    {"NCCL_BUFFSIZE": "1048576"},
    {"NCCL_LL_BUFFSIZE": "16384", "NCCL_LL128_BUFFSIZE": "131072"},
    {"NCCL_WIN_ENABLE": "0"},  # symmetric windows
    {"NCCL_P2P_DISABLE": "1"},  # by host memory: what is left has nothing to do with peers
    {"NCCL_BUFFSIZE": "1048576", "NCCL_MAX_CTAS": "4", "NCCL_CUMEM_ENABLE": "0", "NCCL_WIN_ENABLE": "0", "NCCL_ALGO": "Ring"},
)


def nccl_memory(run):
    """When a communicator takes how much device memory, and which of NCCL's settings changes that."""
    if not run.options.on_gpus:
        return
    for settings in NCCL_SETTINGS:
        name = " ".join(f"{variable}={value}" for variable, value in settings.items()) or "as we make it"
        run.update(name, limit=15, environment=settings, nccl_alone=1, **SMALL)


def trace(run):
    for collective in ("peer", "nccl") if run.options.on_gpus else ("peer",):
        for figures in run.update(f"traced ({collective})", gib=min(run.options.gib, 16), collective=collective, updates=1):
            (run.out / f"trace-{collective}.json").write_text(json.dumps(timeline(figures)))


def timeline(figures):
    """The last verified update in the format of chrome://tracing. Stages of a rank follow each other; lanes begin with the
    last stage of `prepare`, as a report says only how long they took."""
    events = []
    for rank in figures["by_rank"]:
        update = [one for one in rank["updates"] if one["verify"]][-1]
        stages = update["stages"]

        def name_of(kind, name, **row):
            events.append({"ph": "M", "pid": rank["rank"], "name": kind, "args": {"name": name}} | row)

        def add(row, name, begin):
            events.append({"ph": "X", "pid": rank["rank"], "tid": row, "name": name, "ts": begin * 1e6, "dur": stages[name] * 1e6})
            return begin + stages[name]

        name_of("process_name", f"rank {rank['rank']}")
        name_of("thread_name", "update", tid=0)
        now = prepared = 0
        for name in PREPARE + COMMIT:
            if name in stages:
                now = add(0, name, now)
            if name == PREPARE[-1]:
                prepared = now
        for row, name in enumerate(LANES, 1):
            if name in stages:
                name_of("thread_name", f"lane {name}", tid=row)
                add(row, name, prepared)
    return {"traceEvents": events}


# docs/report.md
PREPARE = ("agree", "plan", "allocate")
COMMIT = ("connect", "open", "deliver", "agree-loaded", "release", "finish")
LANES = ("fill", "receive", "pull", "credits")


def compare(run):
    if not run.options.on_gpus:
        return run.update("peer, its worker", collective="peer", worker=STOCK_WORKER, updates=2)
    file = run.out / "compare.jsonl"
    file.unlink(missing_ok=True)
    text = run.call("compare", 260, [sys.executable, HERE / "compare_reference.py", "--gpus", run.options.gpus,
                                     "--gib", run.options.gib, "--experts", "--json", file, "--program", BIN / "gpu_update"])
    if text:
        print(text)
        run.results["compare"] = [json.loads(line) for line in file.read_text().splitlines()]


def choices(run):
    run.update("peer", collective="peer", updates=5)
    if run.options.on_gpus:
        run.update("nccl", collective="nccl", updates=5)
    run.update("peer, buffers kept", collective="peer", keep_buffers=1)
    run.update("peer, overlap off", collective="peer", overlap="off")
    # As many owners in a bucket as it has chunks.
    run.update("peer, one owner at a time", collective="peer", bucket="128MiB", chunk="128MiB")
    for ring in ("256MiB", "512MiB", "2GiB", "4GiB"):
        run.update(f"peer, ring of {ring}", collective="peer", ring=ring)
    for chunk in ("16MiB", "64MiB", "128MiB", "256MiB"):
        run.update(f"peer, chunks of {chunk}", collective="peer", chunk=chunk)
    if run.options.on_gpus:
        run.update("nccl, chunks of 64MiB", collective="nccl", chunk="64MiB")
        run.update("nccl, communicators released", collective="nccl", release_communicators=1)


def p2p(run):
    """The first half holds the checkpoint, the second is updated out of its memory, which does nothing for it."""
    ranks = run.options.ranks
    if ranks > 1:
        run.update("P2P, second half of the ranks", owners=ranks // 2, first_recipient=ranks // 2, collective="peer")
        run.update("P2P, all but rank 0", owners=ranks, first_recipient=1, collective="peer")


def kill_one(run, name, rank=1, **settings):
    if run.options.ranks > 1:
        run.update(name, gib=min(run.options.gib, 8), updates=1, kill_rank=rank, **settings)


def kill(run):
    kill_one(run, "a rank is killed (peer)", collective="peer")


def kill_nccl(run):
    if run.options.on_gpus:
        kill_one(run, "a rank is killed (nccl)", collective="nccl")


def kill_hub(run):
    for collective in ("peer", "nccl") if run.options.on_gpus else ("peer",):
        kill_one(run, f"the rank with the hub is killed ({collective})", rank=0, collective=collective)


def nccl_hosts(run):
    """Ranks of several hosts tell each other over the transport how far they are, before a group call goes out."""
    if run.options.on_gpus and run.options.ranks > 1:
        hosts = {"collective": "nccl", "hosts": run.options.ranks}
        run.update("nccl between hosts", gib=min(run.options.gib, 16), **hosts)
        kill_one(run, "a rank of another host is killed (nccl)", **hosts)


def large(run):
    for collective in ("peer", "nccl") if run.options.on_gpus else ("peer",):
        run.update(f"64 GiB ({collective})", limit=150, gib=64, updates=2, collective=collective)


def ceiling_of(figures, broadcast):
    """Seconds below which no update can be: every GPU's share comes over its own link, all of it goes to each."""
    by_links = figures["total_bytes"] / 1e9 / figures["upload_gb_per_s"]
    return max(by_links, figures["total_bytes"] / 1e9 / broadcast if broadcast else 0)


def markdown(results):
    lines = [f"{results['ranks']} ranks on {results['gpus']} GPUs, {results['gib']} GiB; {results['machine']}", ""]
    if "ceilings" in results:
        lines += ["| ceiling | with | GB/s |", "|---|---|---|"]
        lines += [f"| {row['what']} | {row['with']} | {row['gb_per_s']:.1f} |" for row in results["ceilings"]["ceilings"]]
        lines.append("")
    broadcast = 0
    alone = [row for row in results["runs"] if "nccl" in row]
    for row in alone:
        if row["run"] == "NCCL alone":
            rates = row["nccl"]["gb_per_s"]
            broadcast = max(rates["all_roots"].values()) if results["gpus"] > 1 else 0
            lines += ["| NCCL broadcast | one root, GB/s | all roots, GB/s |", "|---|---|---|"]
            lines += [f"| {size} | {rates['one_root'][size]:.0f} | {rates['all_roots'][size]:.0f} |" for size in rates["one_root"]]
            lines.append("")
    if alone:
        lines += ["| communicator | s | to connect | GiB when made | after 256 B | 4 MiB | 16 MiB | all | when freed | one root, GB/s | all roots |",
                  "|" + "---|" * 11]
        for row in alone:
            figures, rates = row["nccl"], row["nccl"]["gb_per_s"]
            gib = " | ".join(f"{figures[f'{when}_bytes'] / 2**30:.2f}" for when in ("communicator", "small_call", "warming_call", "large_call", "used", "left"))
            best = " | ".join(f"{max(rates[roots].values()):.0f}" for roots in ("one_root", "all_roots"))
            lines.append(f"| {row['run']} | {figures['make_seconds']:.2f} | {figures['connect_seconds']:.2f} | {gib} | {best} |")
        lines.append("")
    if "compare" in results:
        lines += ["| side | first s | later s | device GiB |", "|---|---|---|---|"]
        lines += [f"| {row['side']} | {row['first_seconds']:.3f} | {row['later_seconds']:.3f} | {row['extra_device_bytes'] / 2**30:.2f} |"
                  for row in results["compare"]]
        lines.append("")
    lines += ["| run | GB | H2D GB/s | from a neighbour GB/s | first s | verified s | not verified s | of the ceiling | device GiB |", "|" + "---|" * 9]
    for row in results["runs"]:
        if "nccl" in row:
            continue
        if "verified_seconds" not in row:
            told = ", ".join(f"rank {one['rank']} {one['seconds']:.3f} s" for one in row["told"])
            lines.append(f"| {row['run']} | | | | | cause after: {told} | | | |")
            continue
        share = ceiling_of(row, broadcast) / row["verified_seconds"] * 100
        lines.append(f"| {row['run']} | {row['total_bytes'] / 1e9:.2f} | {row['upload_gb_per_s']:.1f} | {row.get('peer_gb_per_s', 0):.0f} | "
                     f"{row['first_seconds']:.3f} | {row['verified_seconds']:.3f} | {row['unverified_seconds']:.3f} | {share:.1f} % | "
                     f"{row['extra_device_bytes'] / 2**30:.2f} |")
    lines += [f"\nleft out: {one['run']}: {one['why']}" for one in results["left_out"]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--gpus", type=int, default=0, help="0: all that are found")
    parser.add_argument("--ranks", type=int, default=0, help="0: one for each GPU; more share them")
    parser.add_argument("--gib", type=float, default=64)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=470, help="for all of it")
    parser.add_argument("--out", default="multi-gpu")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of " + " ".join(STEPS))
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"no step {', '.join(sorted(unknown))}")
    options.gpus = options.gpus or (gpus_found() if options.device == "cuda" else 1)
    if options.gpus == 0:
        parser.error("no GPU here")
    options.ranks = options.ranks or (options.gpus if options.device == "cuda" else 2)
    options.on_gpus = options.device == "cuda" and options.ranks == options.gpus  # NCCL wants a GPU for each rank
    run = Run(options)
    for step in options.steps or STEPS:
        globals()[step.replace("-", "_")](run)
        (run.out / "results.json").write_text(json.dumps(run.results, indent=1))
    text = markdown(run.results)
    (run.out / "results.md").write_text(text)
    print(text)
    return 1 if any(one["why"] != "no time" for one in run.results["left_out"]) else 0


if __name__ == "__main__":
    sys.exit(main())

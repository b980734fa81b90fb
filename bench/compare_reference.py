#!/usr/bin/env python3
"""Our ranks and those of the field's package checkpoint-engine 0.4.2 in one run: the same checkpoint (qwen3 names and
shapes, bf16, from tensors in memory), the same worker processes (the package's own worker, which copies every tensor
into its own parameters), the same GPUs; then ours with the native worker. Reported for each: registration,
unregistration, gather, first update, later ones (median), extra device memory at its peak, processor seconds. Every
byte is compared on the worker's side after the first and the last update.

  bench/compare_reference.py [--gpus N] [--gib 8 32] [--program build/bundle/bin/gpu_update] [--json FILE]
  bench/compare_reference.py --tensors 1x1KiB 1x1MiB 16x4MiB 32x16MiB 128x16MiB

The second form takes checkpoints of equal tensors, small ones above all; the package keeps its processes for all of
them, which costs it nothing.

A later update of ours that takes longer than its is a failure, and so is a target that is missed: SPEED below for the
sizes that have one, registration at least 5 times as fast, unregistration in a tenth of the time, gather under 20 ms.

Needs torch and the package with what it imports. --device host is a dry run without it and without a GPU."""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
NATIVE = "ours, native worker"
WORKER = f"{sys.executable} {HERE / 'compare' / 'stock_worker.py'}"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


# How many times as fast as 0.4.2 a later update shall be, by GPUs and GiB: with its worker, with the native one.
SPEED = {(1, 8): (1.7, 2.5), (1, 32): (1.25, 1.45), (2, 16): (2.2, 3.3), (2, 64): (2.0, 2.4)}

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Checkpoint:
    """A model of so many GiB, or equal tensors ("16x4MiB")."""

    def __init__(self, text):
        self.text = text
        self.gib, self.tensors, self.tensor_bytes = text, 0, 0
        if isinstance(text, str):
            count, size = text.split("x")
            self.tensors, self.tensor_bytes = int(count), int(size[:-3]) * UNITS[size[-3:]]
            self.gib = self.tensors * self.tensor_bytes / 2**30


def reference(options, checkpoints):
    """The package's figures for each checkpoint, of all ranks: the slowest, or the largest."""
    port, barrier_port = free_ports(2)
    # The package has its store at MASTER_PORT + 1.
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1), "LOGURU_LEVEL": "ERROR"}
    first = checkpoints[0]
    sizes = ["--gib", str(first.gib), "--shrink", str(options.shrink), "--gpus", str(options.gpus),
             "--experts", str(int(options.experts))]
    equal = [f"{one.tensors}x{one.tensor_bytes}" for one in checkpoints if one.tensors]
    processes, results = [], []
    for rank in range(options.gpus):
        ours, theirs = socket.socketpair()
        mine, result = socket.socketpair()
        own = [*sizes, "--rank", str(rank), "--peer-fd"]
        processes.append(subprocess.Popen(
            [*WORKER.split(), *own, str(theirs.fileno()), "--tensors", str(first.tensors), "--tensor-bytes",
             str(first.tensor_bytes)], pass_fds=[theirs.fileno()]))
        processes.append(subprocess.Popen(
            [sys.executable, str(HERE / "compare" / "reference_rank.py"), *own, str(ours.fileno()),
             "--ranks", str(options.gpus), "--updates", str(options.updates), "--result-fd", str(result.fileno()),
             "--barrier-port", str(barrier_port), *(["--equal-tensors", *equal] if equal else [])],
            pass_fds=[ours.fileno(), result.fileno()], env=environment))
        for end in (ours, theirs, result):
            end.close()
        results.append(mine)
    lines = [end.makefile().readline() for end in results]
    for process in processes:
        if not all(lines):
            process.kill()
        process.wait()
    if not all(lines):
        raise SystemExit("compare_reference: a rank of the reference has failed")
    by_checkpoint = zip(*(json.loads(line) for line in lines))
    return [{member: max(rank[member] for rank in ranks) for member in ranks[0]} for ranks in by_checkpoint]


def ours(options, checkpoint, worker):
    """What gpu_update measures, with updates that are verified."""
    out = pathlib.Path(f"/tmp/compare-reference-{os.getpid()}.json")
    command = [options.program, "--device", options.device, "--gib", str(checkpoint.gib), "--shrink", str(options.shrink),
               "--ranks", str(options.gpus), "--gpus", str(options.gpus), "--updates", str(options.updates),
               "--experts", str(int(options.experts)), "--json", str(out)]
    if checkpoint.tensors:
        command += ["--tensors", str(checkpoint.tensors), "--tensor-bytes", str(checkpoint.tensor_bytes)]
    if worker:
        command += ["--worker", worker]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures = json.loads(out.read_text())
    finally:
        out.unlink(missing_ok=True)
    return figures | {"later_seconds": figures["verified_seconds"]}


def in_words(size):
    """Small checkpoints have no gigabytes worth printing."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size:.0f} B"


def row(name, figures, ceiling, base):
    size = figures["total_bytes"]
    speed = f"{base['later_seconds'] / figures['later_seconds']:5.2f} x" if base else "       "
    share = f"{size / ceiling / 1e7 / figures['later_seconds']:5.1f} %" if ceiling else "       "
    return (f"{name:24} {in_words(size):>9} {size / figures['register_first_seconds'] / 1e9:8.2f} "
            f"{size / figures['register_seconds'] / 1e9:7.2f} {figures['unregister_seconds']:9.3f} "
            f"{figures['gather_seconds'] * 1e3:9.1f} {figures['first_seconds']:8.3f} "
            f"{figures['later_seconds']:8.3f} {share} {speed} {figures['extra_device_bytes'] / 2**30:6.2f} "
            f"{figures['rank_cpu_seconds']:6.2f} {figures['worker_cpu_seconds']:6.2f}")


def missed(options, name, checkpoint, figures, base):
    """The targets that these figures miss beside those of 0.4.2, a line each."""
    wanted = SPEED.get((options.gpus, checkpoint.gib), (1.0, 1.0))[name == NATIVE]
    checks = [("speed of a later update", base["later_seconds"] / figures["later_seconds"], wanted, "x")]
    if not checkpoint.tensors:  # a registration of a few small tensors is nothing to compare
        checks += [
            ("speed of registration", base["register_seconds"] / figures["register_seconds"], 5, "x"),
            ("speed of unregistration", base["unregister_seconds"] / max(figures["unregister_seconds"], 1e-6), 10, "x"),
            ("gathers of 20 ms", 0.02 / figures["gather_seconds"], 1, "x"),
        ]
    return [f"{name}, {checkpoint.text}: {what} {value:.2f} {unit}, {least} wanted"
            for what, value, least, unit in checks if value < least]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, help="one rank and one worker on each")
    parser.add_argument("--gib", type=float, nargs="+", default=[8, 32])
    parser.add_argument("--tensors", nargs="+", metavar="NxSIZE", help="checkpoints of equal tensors instead")
    parser.add_argument("--shrink", type=int, default=1, help="divides every dimension")
    parser.add_argument("--experts", action="store_true", help="many small tensors, as in qwen3-235b-a22b")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    bundled = HERE.parent / "bin" / "gpu_update"
    built = HERE.parent / "build" / "bundle" / "bin" / "gpu_update"
    parser.add_argument("--program", default=str(bundled if bundled.exists() else built))
    parser.add_argument("--json", help="a file to which each row is appended")
    options = parser.parse_args()
    head = (f"{'':24} {'':>9} {'regist.':>8} {'again':>7} {'unreg. s':>9} {'gather ms':>9} "
            f"{'first s':>8} {'later s':>8} {'of H2D':>7} {'speed':>7} {'GiB':>6} {'cpu s':>6} {'worker':>6}")
    print(head, flush=True)
    checkpoints = [Checkpoint(text) for text in options.tensors or options.gib]
    bases = [None] * len(checkpoints)
    if options.device == "cuda" and options.tensors:
        bases = reference(options, checkpoints)
    misses = []
    for checkpoint, base in zip(checkpoints, bases):
        ceiling = None
        if options.device == "cuda" and base is None:
            base = reference(options, [checkpoint])[0]
        for name, worker in [("ours, stock worker", WORKER), (NATIVE, None)]:
            begin = time.monotonic()
            figures = ours(options, checkpoint, worker)
            if ceiling is None:
                ceiling = figures["upload_gb_per_s"]
                if base:
                    print(row("0.4.2, its worker", base, ceiling, None), flush=True)
                    record(options, "0.4.2", checkpoint, base)
            print(row(name, figures, ceiling, base), flush=True)
            if worker:
                print(f"{'':24} of that, the worker's own release and garbage collection: "
                      f"{figures['worker_release_seconds']:.3f} s "
                      f"(the run took {time.monotonic() - begin:.0f} s)", flush=True)
            record(options, name, checkpoint, figures)
            if base:
                misses += missed(options, name, checkpoint, figures, base)
    if misses:
        raise SystemExit("\n".join(["compare_reference: missed:", *misses]))


def record(options, name, checkpoint, figures):
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"side": name, "gpus": options.gpus, "checkpoint": checkpoint.text} | figures) + "\n")


if __name__ == "__main__":
    main()

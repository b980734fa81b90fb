#!/usr/bin/env python3
"""Our ranks and those of the field's package checkpoint-engine 0.4.2 in one run: the same checkpoint (qwen3 names and
shapes, bf16, from tensors in memory), the same worker processes (the package's own worker, which copies every tensor
into its own parameters), the same GPUs; then ours with the native worker. Reported for each: registration,
unregistration, gather, first update, later ones (median), extra device memory at its peak, processor seconds. Every
byte is compared on the worker's side after the first and the last update.

  bench/compare_reference.py [--gpus N] [--gib 8 32] [--program build/bundle/bin/gpu_update] [--json FILE]

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
WORKER = f"{sys.executable} {HERE / 'compare' / 'stock_worker.py'}"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def reference(options, gib):
    """The package's figures, of all ranks: the slowest, or the largest."""
    port, barrier_port = free_ports(2)
    # The package has its store at MASTER_PORT + 1.
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1), "LOGURU_LEVEL": "ERROR"}
    sizes = ["--gib", str(gib), "--shrink", str(options.shrink), "--gpus", str(options.gpus),
             "--experts", str(int(options.experts))]
    processes, results = [], []
    for rank in range(options.gpus):
        ours, theirs = socket.socketpair()
        mine, result = socket.socketpair()
        own = [*sizes, "--rank", str(rank), "--peer-fd"]
        processes.append(subprocess.Popen([*WORKER.split(), *own, str(theirs.fileno())], pass_fds=[theirs.fileno()]))
        processes.append(subprocess.Popen(
            [sys.executable, str(HERE / "compare" / "reference_rank.py"), *own, str(ours.fileno()),
             "--ranks", str(options.gpus), "--updates", str(options.updates), "--result-fd", str(result.fileno()),
             "--barrier-port", str(barrier_port)],
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
    ranks = [json.loads(line) for line in lines]
    return {member: max(rank[member] for rank in ranks) for member in ranks[0]}


def ours(options, gib, worker):
    """What gpu_update measures, with updates that are verified."""
    out = pathlib.Path(f"/tmp/compare-reference-{os.getpid()}.json")
    command = [options.program, "--device", options.device, "--gib", str(gib), "--shrink", str(options.shrink),
               "--ranks", str(options.gpus), "--gpus", str(options.gpus), "--updates", str(options.updates),
               "--experts", str(int(options.experts)), "--json", str(out)]
    if worker:
        command += ["--worker", worker]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures = json.loads(out.read_text())
    finally:
        out.unlink(missing_ok=True)
    return figures | {"later_seconds": figures["verified_seconds"]}


def row(name, figures, ceiling, base):
    size = figures["total_bytes"]
    speed = f"{base['later_seconds'] / figures['later_seconds']:5.2f} x" if base else "       "
    share = f"{size / ceiling / 1e7 / figures['later_seconds']:5.1f} %" if ceiling else "       "
    return (f"{name:24} {size / 1e9:7.2f} {size / figures['register_first_seconds'] / 1e9:8.2f} "
            f"{size / figures['register_seconds'] / 1e9:7.2f} {figures['unregister_seconds']:9.3f} "
            f"{figures['gather_seconds'] * 1e3:9.1f} {figures['first_seconds']:8.3f} "
            f"{figures['later_seconds']:8.3f} {share} {speed} {figures['extra_device_bytes'] / 2**30:6.2f} "
            f"{figures['rank_cpu_seconds']:6.2f} {figures['worker_cpu_seconds']:6.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, help="one rank and one worker on each")
    parser.add_argument("--gib", type=float, nargs="+", default=[8, 32])
    parser.add_argument("--shrink", type=int, default=1, help="divides every dimension")
    parser.add_argument("--experts", action="store_true", help="many small tensors, as in qwen3-235b-a22b")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    bundled = HERE.parent / "bin" / "gpu_update"
    built = HERE.parent / "build" / "bundle" / "bin" / "gpu_update"
    parser.add_argument("--program", default=str(bundled if bundled.exists() else built))
    parser.add_argument("--json", help="a file to which each row is appended")
    options = parser.parse_args()
    head = (f"{'':24} {'GB':>7} {'regist.':>8} {'again':>7} {'unreg. s':>9} {'gather ms':>9} "
            f"{'first s':>8} {'later s':>8} {'of H2D':>7} {'speed':>7} {'GiB':>6} {'cpu s':>6} {'worker':>6}")
    print(head, flush=True)
    for gib in options.gib:
        base = ceiling = None
        if options.device == "cuda":
            base = reference(options, gib)
        for name, worker in [("ours, stock worker", WORKER), ("ours, native worker", None)]:
            begin = time.monotonic()
            figures = ours(options, gib, worker)
            if ceiling is None:
                ceiling = figures["upload_gb_per_s"]
                if base:
                    print(row("0.4.2, its worker", base, ceiling, None), flush=True)
                    record(options, "0.4.2", gib, base)
            print(row(name, figures, ceiling, base), flush=True)
            if worker:
                print(f"{'':24} of that, the worker's own release and garbage collection: "
                      f"{figures['worker_release_seconds']:.3f} s "
                      f"(the run took {time.monotonic() - begin:.0f} s)", flush=True)
            record(options, name, gib, figures)


def record(options, name, gib, figures):
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"side": name, "gpus": options.gpus, "gib": gib} | figures) + "\n")


if __name__ == "__main__":
    main()

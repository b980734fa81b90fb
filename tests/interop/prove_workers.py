"""Workers of others, driven by our ranks over their own HTTP forms; what they load is compared bit by bit with the files.

    prove_workers.py --program P --cache C [--small] KIND
    KIND: field   the worker of checkpoint-engine 0.4.2
          sglang  SGLang's module checkpoint_engine_worker, beside whichever package `checkpoint_engine` is found first
    --small: checkpoints that are made without the package transformers
"""
import argparse
import concurrent.futures
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import checkpoints
import torch


class Model:
    """What an engine's model is to a worker: load_weights() keeps copies."""

    def __init__(self):
        self.held = {}
        self.hooks = 0

    def load_weights(self, weights):
        for name, tensor in weights:
            self.held[name] = tensor.clone()

    def named_modules(self):
        return []

    def post_load_weights(self):
        self.hooks += 1


class FieldWorker:
    def __init__(self, number):
        import field_on_cpu
        import zmq

        self.key, self.model = f"CPU-{number}", Model()
        self.module, self.context = field_on_cpu.field, zmq.Context()

    def update(self, addresses):
        self.module.update_weights_from_ipc(self.context, addresses[self.key], None, run=self.model.load_weights,
                                            post_hook=self.model.post_load_weights)


def sglang_worker(number):
    from sglang.srt.checkpoint_engine import checkpoint_engine_worker as sglang

    class Worker(sglang.SGLangCheckpointEngineWorkerExtensionImpl):
        """SGLang's class; on a CPU its device has no uuid and no number."""

        def get_device_uuid(self):
            return f"CPU-{number}"

        def get_device_id(self):
            return None

        def update(self, addresses):
            self.update_weights_from_ipc(addresses)

        @property
        def model(self):
            return self.model_runner.model

    return Worker(types.SimpleNamespace(model=Model()))


def same(held, expected):
    """Names, dtypes, shapes and every bit."""
    return held.keys() == expected.keys() and all(
        tensor.dtype == held[name].dtype and tensor.shape == held[name].shape and
        torch.equal(tensor.reshape(-1).view(torch.uint8), held[name].reshape(-1).view(torch.uint8))
        for name, tensor in expected.items())


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Engine:
    """An engine of such workers; with `passes` two, a draft model wants everything again over the same addresses."""

    def __init__(self, workers, passes=1):
        self.workers, self.passes = workers, passes
        self.raised = []
        self.outcomes = []  # of the last pass: what each worker raised
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                try:
                    self.wfile.write(text)
                except BrokenPipeError:
                    pass  # an update that has failed waits for no answer

            def do_GET(self):
                self.answer(200, {})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    if self.path == "/collective_rpc":
                        engine.update(body["args"][0])
                        self.answer(200, {"results": [None] * len(engine.workers)})
                    else:
                        engine.update(body["zmq_handles"])
                        self.answer(200, {"success": True, "message": "ok"})
                except Exception as error:
                    engine.raised.append(f"{type(error).__name__}: {error}")
                    self.answer(500 if self.path == "/collective_rpc" else 400, {"success": False, "message": str(error)})

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def update(self, addresses):
        for _ in range(self.passes):
            with concurrent.futures.ThreadPoolExecutor(len(self.workers)) as pool:
                updates = [pool.submit(worker.update, addresses) for worker in self.workers]
            self.outcomes = [update.exception() for update in updates]
            for error in filter(None, self.outcomes):
                raise error


def with_index(checkpoint, folder):
    """The checkpoint with an index beside it, as those of several files have one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    file.unlink(missing_ok=True)
    file.symlink_to(next(checkpoint.glob("*.safetensors")))
    checkpoints.write_json(folder / "model.safetensors.index.json", {"weight_map": {name: file.name for name in checkpoints.tensors(folder)}})
    return folder


class SglangProgram:
    """SGLang's own update program, unmodified, under torchrun with two ranks: the package that it imports is ours."""

    def __init__(self, proof, engine):
        self.proof, self.engine = proof, engine

    def start(self, *more):
        import sglang.srt.checkpoint_engine

        program = pathlib.Path(sglang.srt.checkpoint_engine.__file__).parent / "update.py"
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            number = port.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port",
                   str(number), program, "--endpoint", self.engine.url, "--inference-parallel-size", "2"]
        return subprocess.Popen([*map(str, command), *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def update(self, checkpoint, what, *more):
        for worker in self.engine.workers:
            worker.model.held.clear()
        process = self.start("--checkpoint-path", checkpoint, *more)
        output = process.communicate(timeout=180)[0]
        self.compare(checkpoint, what, process.returncode == 0, output)

    def compare(self, checkpoint, what, good, output):
        if not good:
            return self.proof.say(False, f"{what}: {' | '.join(output.strip().splitlines()[-12:])}; the engine raised {self.engine.raised}")
        expected = checkpoints.tensors(checkpoint)
        for worker in self.engine.workers:
            self.proof.say(same(worker.model.held, expected), f"{what}: {len(expected)} tensors equal bit by bit")

    def joined(self, checkpoint, metas, what):
        """One job keeps the checkpoint; another, which registers nothing, updates out of its memory."""
        for worker in self.engine.workers:
            worker.model.held.clear()
        keeper = self.start("--checkpoint-path", checkpoint, "--save-metas-file", metas, "--sleep-time", "60")
        try:
            updated = wait_for(lambda: all(same(worker.model.held, checkpoints.tensors(checkpoint)) for worker in self.engine.workers))
            self.proof.say(updated, f"{what}: the job that keeps the checkpoint has updated the engine")
            for worker in self.engine.workers:
                worker.model.held.clear()
            joining = self.start("--load-metas-file", metas, "--checkpoint-name", "what-the-other-job-has")
            output = joining.communicate(timeout=120)[0]
            self.compare(checkpoint, what, joining.returncode == 0, output)
        finally:
            keeper.terminate()
            keeper.communicate(timeout=30)


class Proof:
    def __init__(self, options, engine_name):
        self.options, self.engine_name = options, engine_name
        self.said = self.failed = 0

    def say(self, good, what):
        self.said += 1
        self.failed += not good
        print(f"{'ok' if good else 'FAILED'}: {what}", flush=True)

    def command(self, engine, checkpoint, *more, ranks=None):
        return [self.options.program, "update", "--nproc", str(ranks or len(engine.workers)), "--device", "host", "--checkpoint-path",
                str(checkpoint), "--engine", self.engine_name, "--endpoint", engine.url, "--timeout", "60", "--progress", "none",
                "--inference-parallel-size", str(len(engine.workers)), *map(str, more)]

    def update(self, engine, checkpoint, what, *more, ranks=None):
        engine.raised.clear()
        for worker in engine.workers:
            worker.model.held.clear()
            worker.model.hooks = 0
        done = subprocess.run(self.command(engine, checkpoint, *more, ranks=ranks), capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            return self.say(False, f"{what}: {done.stderr.strip()}; the engine raised {engine.raised}")
        expected = checkpoints.tensors(checkpoint)
        for worker in engine.workers:
            self.say(same(worker.model.held, expected), f"{what}: {len(expected)} tensors equal bit by bit")
            if worker.model.hooks != engine.passes:
                print(f"note: {what}: the hook after loading ran {worker.model.hooks} times, not {engine.passes}", flush=True)

    def one_bit(self, engine, checkpoint):
        """The comparison can fail: it sees one bit of the last tensor."""
        held, expected = engine.workers[0].model.held, checkpoints.tensors(checkpoint)
        bytes_ = held[sorted(held)[-1]].reshape(-1).view(torch.uint8)
        bytes_[-1] ^= 1
        self.say(not same(held, expected), "one bit that differs is seen")
        bytes_[-1] ^= 1
        self.say(same(held, expected), "without it the tensors are equal")

    def worker_error(self, engine, checkpoint):
        """The error of one worker is the update's, on one line; all workers hear of it.

        It fails when all of them are in the update: 0.4.2's worker waits for ever for a rank that has ended before it connected.
        """
        victim = engine.workers[-1].model

        def fail(weights):
            wait_for(lambda: all(worker.model.held for worker in engine.workers[:-1]), 30)
            raise ZeroDivisionError("on purpose")

        for worker in engine.workers:
            worker.model.held.clear()
        victim.load_weights, kept = fail, victim.load_weights
        engine.outcomes = []
        done = subprocess.run(self.command(engine, checkpoint), capture_output=True, text=True, timeout=120)
        victim.load_weights = kept
        lines = done.stderr.strip().splitlines()
        said = [line for line in lines if " warning " not in line]  # of a rank that has gone first
        self.say(done.returncode == 1 and said and all("ZeroDivisionError" in line for line in said),
                 f"a worker that fails: {lines}")
        wait_for(lambda: engine.outcomes)
        self.say(len(engine.outcomes) == len(engine.workers) and all(engine.outcomes),
                 f"every worker has raised: {[f'{type(error).__name__}: {error}'.splitlines()[0][:100] for error in engine.outcomes]}")

    def rank_killed(self, engine, checkpoint):
        """The rank of a worker is killed while it loads: a surviving rank of the host sets the worker free."""
        loading, killed = threading.Event(), threading.Event()
        outcome = []
        model = engine.workers[0].model

        def load(weights):
            loading.set()
            killed.wait(60)

        model.load_weights, kept = load, model.load_weights
        update = engine.update

        def observed(addresses):
            try:
                update(addresses)
                outcome.append("returned")
            except BaseException as error:
                outcome.append(f"{type(error).__name__}: {error}".splitlines()[0])
                raise

        engine.update = observed
        begin = time.monotonic()
        process = subprocess.Popen(self.command(engine, checkpoint, "--update-method", "p2p", "--bucket-size", "4KiB", ranks=2),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.say(loading.wait(60), "the worker has the first of many buckets")
        for pid in subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split():
            if b"RANK=0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)
                begin = time.monotonic()
                killed.set()
        while not outcome and time.monotonic() < begin + 30:
            time.sleep(0.01)
        seconds = time.monotonic() - begin
        process.communicate(timeout=60)
        engine.update, model.load_weights = update, kept
        self.say(killed.is_set() and bool(outcome) and outcome[0] != "returned", f"its rank is killed: the worker is free after {seconds:.2f} s ({outcome})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("field", "sglang"))
    parser.add_argument("--program", required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        first, second = checkpoints.make_small(options.cache / "small")
    else:
        checkpoints.make(options.cache / "models")
        first, second = (options.cache / "models" / name for name in ("dense-1", "moe-1"))
    import checkpoint_engine

    package = pathlib.Path(checkpoint_engine.__file__).parent.parent.name
    make = FieldWorker if options.kind == "field" else sglang_worker
    proof = Proof(options, "vllm" if options.kind == "field" else "sglang")
    for count in (1, 2):
        engine = Engine([make(number) for number in range(count)])
        proof.update(engine, first, f"{options.kind} ({package}), {count} workers")
        proof.update(engine, second, f"{options.kind} ({package}), {count} workers, small buckets", "--bucket-size", "16KiB")
        proof.worker_error(engine, first)
        proof.update(engine, first, f"{options.kind} ({package}), {count} workers, the next update")
    if options.kind == "sglang":
        engine = Engine([make(number) for number in range(2)], passes=2)
        proof.update(engine, first, f"sglang ({package}), a draft model's second pass")
        program = SglangProgram(proof, Engine([make(number) for number in range(2)]))
        program.update(first, "sglang's update.py, files")
        program.update(with_index(second, options.cache / "scratch" / "indexed"), "sglang's update.py, tensors", "--update-method", "all")
        program.joined(first, options.cache / "scratch" / "metas.pickle", "sglang's update.py, --load-metas-file")
    engine = Engine([make(0)])
    proof.rank_killed(engine, first)
    proof.update(engine, first, f"{options.kind} ({package}), the update after that")
    proof.one_bit(engine, first)
    print(f"{proof.said - proof.failed} passed, {proof.failed} failed", flush=True)
    # A worker that nobody sets free would keep the process.
    os._exit(1 if proof.failed else 0)


if __name__ == "__main__":
    main()

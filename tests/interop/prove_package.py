"""Our Python package with torch, and the sender of the field's package (checkpoint-engine 0.4.2) against our worker, on the CPU.

    prove_package.py [--field F] KIND
    KIND: torch    tensors of every dtype through our ParameterServer and our worker, compared bit by bit
          separate collectives by use_backend("vllm_nccl") beside a default group of the program's own
          groups   torch's default group, which init_process_group() makes (torch 2.2 or newer), and our collectives beside it
          sender   the field's ParameterServer (in F), its own code but for what needs a GPU, into our worker
"""
import argparse
import functools
import multiprocessing
import os
import pathlib
import socket
import sys
import tempfile
import types
from datetime import timedelta

import older_torch  # noqa: F401  (before the field's package)
import torch

DTYPES = [name for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16",
                            "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
                            "float8_e5m2fnuz") if hasattr(torch, name)]


def make_tensors(dtypes=DTYPES, elements=4321):
    torch.manual_seed(5)
    tensors = {}
    for i, name in enumerate(dtypes):
        dtype = getattr(torch, name)
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, ((elements + i) * dtype.itemsize,), dtype=torch.uint8)
        tensors[f"model.layers.{i}.{name}"] = raw.view(dtype)
    tensors["scalar"] = torch.tensor(3.5)
    tensors["matrix"] = torch.randn(33, 65)
    return tensors


def same(left, right):
    return (left.dtype == right.dtype and left.shape == right.shape and
            torch.equal(left.contiguous().reshape(-1).view(torch.uint8), right.contiguous().reshape(-1).view(torch.uint8)))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Proofs:
    said = failed = 0

    def say(self, good, what):
        self.said += 1
        self.failed += not good
        print(f"{'ok' if good else 'FAILED'}: {what}", flush=True)

    def equal(self, found, expected, what):
        wrong = [name for name in expected if name not in found or not same(found[name], expected[name])]
        self.say(not wrong and found.keys() == expected.keys(), f"{what}: {len(expected)} tensors equal bit by bit {wrong}")


def receive(address, found, hooks=None, keep=False, wanted=()):
    import zmq

    from checkpoint_engine.worker import update_weights_from_ipc

    def run(weights):
        for name, tensor in weights:
            found[name] = tensor if keep else tensor.clone()

    def finish():
        missing = sorted(set(wanted) - found.keys())
        if missing:
            raise RuntimeError(f"the update lacks weights of this model: {', '.join(missing)}")
        if hooks is not None:
            hooks.append(1)

    update_weights_from_ipc(zmq.Context.instance(), address, None, run=run, post_hook=finish, timeout=60)


def prove_torch(proofs, _):
    from checkpoint_engine.ps import ParameterServer

    tensors = make_tensors()
    if hasattr(torch, "float4_e2m1fn_x2"):
        tensors["four_bits"] = torch.randint(0, 256, (6, 10), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensors["turned"] = torch.arange(12.0).reshape(3, 4).t()
    tensors["conjugate"] = torch.randn(5, dtype=torch.complex64).conj()
    tensors["parameter"] = torch.nn.Parameter(torch.randn(4, 4))
    with ParameterServer(rank=0, world_size=1, device="host", job=f"torch-{os.getpid()}") as server:
        server.register_checkpoint("c", named_tensors=tensors)
        server.gather_metas("c")
        metas = server.get_metas()[0].memory_buffer_metas_list[0].metas
        proofs.say({meta.name: (meta.dtype, meta.shape) for meta in metas} ==
                   {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}, "metas have torch's dtypes and sizes")
        found, hooks = {}, []
        server.update("c", lambda addresses: receive(addresses[0][1], found, hooks), timeout=timedelta(seconds=60))
        expected = {name: tensor.detach().resolve_conj() for name, tensor in tensors.items()}
        proofs.equal(found, expected, "torch tensors")
        proofs.say(hooks == [1], "the hook ran once")
        try:
            server.update("c", lambda addresses: receive(addresses[0][1], found, keep=True), timeout=60)
            proofs.say(False, "a tensor that is kept is an error")
        except RuntimeError as error:
            proofs.say("the engine keeps" in str(error), f"a tensor that is kept is an error: {error}")
        for wrong, why in ((torch.empty(3, device="meta"), "meta device"), (torch.eye(3).to_sparse(), "sparse")):
            try:
                server.register_checkpoint("wrong", named_tensors={"odd": wrong})
                proofs.say(False, why)
            except ValueError as error:
                proofs.say(why in str(error) and '"odd"' in str(error), f"refused: {error}")


def separate_rank(rank, port, queue):
    """The default group has the ranks the other way round: whoever used it would get wrong sums and sources."""
    import torch.distributed

    from checkpoint_engine import distributed

    store = torch.distributed.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=timedelta(seconds=60))
    torch.distributed.init_process_group("gloo", store=torch.distributed.PrefixStore("program", store), rank=1 - rank, world_size=2)
    program = torch.distributed.group.WORLD
    distributed.use_backend("vllm_nccl")
    found = [distributed.is_initialized()]
    for _ in range(2):  # again over the same store
        distributed.init_process_group(rank, 2, store, timeout=timedelta(seconds=60))
        found.append(distributed.is_initialized())
        turned = torch.full((30, 20), float(rank)).t()
        distributed.broadcast(turned, src=1)
        total = torch.tensor([rank + 1])
        distributed.all_reduce(total)
        distributed.all_reduce(total, torch.distributed.ReduceOp.MAX)
        objects = [None, None]
        distributed.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
        alone = distributed.new_group([1])
        mine = torch.tensor([rank + 5])
        distributed.all_reduce(mine, group=alone)
        distributed.broadcast(mine, 1, alone)
        distributed.barrier()
        distributed.destroy_process_group(alone)
        found += [float(turned.sum()), int(total), [each["rank"] for each in objects], int(mine)]
        distributed.destroy_process_group()
        found.append(distributed.is_initialized())
    gathered = [None, None]
    torch.distributed.all_gather_object(gathered, rank)
    found += [gathered, torch.distributed.group.WORLD is program]
    torch.distributed.destroy_process_group()
    queue.put((rank, found))


def prove_separate(proofs, _):
    outcomes = dict(on_two_ranks(separate_rank))
    for rank in range(2):
        once = [True, 600.0, 3, [0, 1], 5 + rank, False]
        expected = [False, *once, *once, [1, 0], True]
        proofs.say(outcomes[rank] == expected, f"rank {rank}: a group beside the program's own, which stays {outcomes[rank]}")


def group_rank(rank, port, queue):
    import torch.distributed

    from checkpoint_engine.ps import ParameterServer

    with ParameterServer(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, device="host",
                         job=f"group-{port}") as server:
        server.init_process_group(timeout=timedelta(seconds=60))
        torch.distributed.barrier()
        total = torch.tensor([rank + 1])
        torch.distributed.all_reduce(total)
        server.register_checkpoint("c", named_tensors=make_tensors(["bfloat16", "int64"]) if rank == 0 else {})
        server.gather_metas("c")
        found = {}
        server.update("c", lambda addresses: receive(addresses[rank][1], found), timeout=60)
        queue.put((int(total), torch.distributed.is_initialized(), len(found)))


def own_group_rank(rank, port, queue):
    """The engine's own collectives beside torch, for torch's tensors."""
    import torch.distributed

    from checkpoint_engine import distributed
    from checkpoint_engine.ps import ParameterServer

    distributed.use_backend("checkpoint_engine")
    with ParameterServer(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, device="host",
                         job=f"own-group-{port}") as server:
        server.init_process_group(timeout=timedelta(seconds=60))
        weights = torch.full((300, 400), rank + 1, dtype=torch.bfloat16)
        distributed.broadcast(weights.t()[::2], src=1)
        total = torch.tensor([rank + 1.0], dtype=torch.bfloat16)
        distributed.all_reduce(total, torch.distributed.ReduceOp.SUM)
        both = torch.distributed.is_initialized() and distributed.is_initialized()
        queue.put((int((weights == 2).sum()) >= 60000, float(total), both))
        distributed.destroy_process_group()
        torch.distributed.destroy_process_group()


def separate_server_rank(rank, port, queue):
    """What a server makes and ends where vllm_nccl was chosen."""
    import torch.distributed

    from checkpoint_engine import distributed
    from checkpoint_engine.ps import ParameterServer

    distributed.use_backend("vllm_nccl")
    with ParameterServer(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, device="host",
                         job=f"separate-{port}") as server:
        found = []
        for _ in range(2):
            server.init_process_group(timeout=timedelta(seconds=60))
            total = torch.tensor([rank + 1])
            distributed.all_reduce(total)
            server.register_checkpoint("c", named_tensors=make_tensors(["bfloat16"]) if rank == 0 else {})
            server.gather_metas("c")
            server.update("c", lambda addresses: receive(addresses[rank][1], {}), timeout=60)
            server.unregister_checkpoint("c")
            found.append((int(total), torch.distributed.is_initialized(), distributed.is_initialized()))
        queue.put(found)


def on_two_ranks(body):
    context = multiprocessing.get_context("spawn")
    queue, port = context.Queue(), free_port()
    ranks = [context.Process(target=body, args=(rank, port, queue)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    outcomes = [queue.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join(60)
    return outcomes


def prove_groups(proofs, _):
    outcomes = on_two_ranks(group_rank)
    proofs.say(outcomes == [(3, False, 4)] * 2, f"torch's default group is made, works, and is destroyed after the update {outcomes}")
    outcomes = on_two_ranks(own_group_rank)
    proofs.say(outcomes == [(True, 3.0, True)] * 2, f"the engine's own collectives with torch's tensors, beside torch's group {outcomes}")
    outcomes = on_two_ranks(separate_server_rank)
    proofs.say(outcomes == [[(3, False, False)] * 2] * 2, f"a server makes a separate group, and no default one {outcomes}")


class CpuModule:
    """In the place of torch.cuda for the field's sender."""

    def __getattr__(self, name):
        return lambda *_: 0

    def device_count(self):
        return 2

    def mem_get_info(self):
        return (1 << 30, 1 << 30)

    def get_device_properties(self, index):
        return types.SimpleNamespace(uuid=f"cpu-{os.getpid()}-{index}")


def share(buffer):
    """In the place of reduce_tensor for a buffer on the GPU: a file that both sides map."""
    path = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="field-sender-", delete=False).name
    buffer.set_(torch.from_file(path, shared=True, size=buffer.numel(), dtype=torch.uint8))
    return functools.partial(torch.from_file, dtype=torch.uint8), (path, True, buffer.numel())


class FromFile:
    """torch.from_file by that name: torch's own pickles as a getattr of a class, which a pickle of the wire need not name."""

    __module__ = "torch"
    original = staticmethod(torch.from_file)

    def __call__(self, *arguments, **options):
        return self.original(*arguments, **options)

    def __reduce__(self):
        return "from_file"


def sender_rank(rank, folder, port, addresses, outcome):
    """The field's package; `folder` comes before ours."""
    sys.path.insert(0, folder)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "PS_MAX_BUCKET_SIZE_GB": str(2**-14)}
    import checkpoint_engine.pin_memory as pin_memory
    import checkpoint_engine.ps as field

    class CpuDevice:
        device_type, backend, device_module = "cpu", "gloo", CpuModule()

    empty = torch.empty
    field.DeviceManager = CpuDevice
    field.reduce_tensor = share
    torch.from_file = FromFile()

    def no_p2p(_):
        raise ImportError("no Mooncake here")

    field.P2PStore = no_p2p
    pin_memory.torch.empty = lambda *arguments, pin_memory=False, **options: empty(*arguments, **options)
    server = field.ParameterServer(auto_pg=True)
    mine = {name: tensor for i, (name, tensor) in enumerate(make_tensors().items()) if i % 2 == rank}
    server.register_checkpoint("c", named_tensors=mine)
    for _ in range(4):
        server.gather_metas("c")
        try:
            server.update("c", lambda entries: addresses.put((rank, entries[rank][1])))
            outcome.put((rank, None))
        except Exception as error:
            outcome.put((rank, str(error)))


def prove_sender(proofs, field):
    import concurrent.futures

    import checkpoint_engine

    proofs.say(hasattr(checkpoint_engine, "UpdateReport"), f"the worker is ours: {checkpoint_engine.__file__}")
    context = multiprocessing.get_context("spawn")
    addresses, outcome, port = context.Queue(), context.Queue(), free_port()
    ranks = [context.Process(target=sender_rank, args=(rank, str(field), port - 1, addresses, outcome), daemon=True)
             for rank in range(2)]
    for rank in ranks:
        rank.start()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        todo = [addresses.get(timeout=120) for _ in ranks]
        found, hooks = [{}, {}], [[], []]
        list(pool.map(lambda one: receive(one[1], found[one[0]], hooks[one[0]]), todo))
        ended = [outcome.get(timeout=60) for _ in ranks]
        proofs.say(all(error is None for _, error in ended), f"the field's sender ends with success {ended}")
        for rank in range(2):
            proofs.equal(found[rank], make_tensors(), f"field's sender, our worker {rank}")
            proofs.say(hooks[rank] == [1], "the hook ran once")
        # A worker that fails: the sender tells the other one.
        todo = [addresses.get(timeout=120) for _ in ranks]
        futures = [pool.submit(receive, address, {}, None, rank == 1) for rank, address in sorted(todo)]
        raised = [str(future.exception(timeout=60)) for future in futures]
        ended = [outcome.get(timeout=60) for _ in ranks]
        proofs.say("Some workers failed" in raised[0] and "the engine keeps" in raised[1] and all(error for _, error in ended),
                   f"a tensor that one worker keeps fails both workers and both ranks: {raised} {ended}")
        # What only the end shows is answered, too: no rank waits for it, and only the worker tells its engine.
        todo = [addresses.get(timeout=120) for _ in ranks]
        futures = [pool.submit(receive, address, {}, wanted=["norm.weight"] * rank) for rank, address in sorted(todo)]
        raised = [str(future.exception(timeout=60)) for future in futures]
        ended = [outcome.get(timeout=60) for _ in ranks]
        proofs.say("None" == raised[0] and "lacks weights of this model: norm.weight" in raised[1] and len(ended) == 2,
                   f"a tensor that one worker misses is its error, and both ranks go on: {raised} {ended}")
        found = [{}, {}]
        todo = [addresses.get(timeout=120) for _ in ranks]
        list(pool.map(lambda one: receive(one[1], found[one[0]]), todo))
        ended = [outcome.get(timeout=60) for _ in ranks]
        proofs.say(all(error is None for _, error in ended), f"and the next update succeeds {ended}")
        proofs.equal(found[1], make_tensors(), "field's sender, our worker 1, after errors")
    for rank in ranks:
        rank.join(30)
    for path in pathlib.Path("/dev/shm").glob("field-sender-*"):
        path.unlink()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--field", type=pathlib.Path)
    parser.add_argument("kind", choices=("torch", "separate", "groups", "sender"))
    options = parser.parse_args()
    proofs = Proofs()
    kinds = {"torch": prove_torch, "separate": prove_separate, "groups": prove_groups, "sender": prove_sender}
    kinds[options.kind](proofs, options.field)
    print(f"{proofs.said - proofs.failed} passed, {proofs.failed} failed")
    sys.exit(1 if proofs.failed else 0)


if __name__ == "__main__":
    main()

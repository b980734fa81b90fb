"""checkpoint_engine.distributed without torch: ranks as processes, arrays of numpy."""

import multiprocessing
import os
import pathlib
import socket
import sys
import threading
import time
import traceback
import types
from datetime import timedelta

import numpy
import pytest

import checkpoint_engine
from checkpoint_engine import _process_group, distributed
from checkpoint_engine.ps import ParameterServer
from conftest import free_port


class FileStore:
    """What a store is to init_process_group: texts by key; get() waits."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def set(self, key, value):
        part = self.folder / "part"
        part.write_text(value)
        part.rename(self.folder / key.replace("/", "-"))

    def get(self, key):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                return (self.folder / key.replace("/", "-")).read_text()
            except FileNotFoundError:
                time.sleep(0.01)
        raise TimeoutError(key)


def rank_main(path, queue, body, rank, count, folder):
    sys.path[:0] = path
    try:
        distributed.init_process_group(rank, count, FileStore(folder), timeout=timedelta(seconds=60))
        result = body(rank, count)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        queue.put((rank, result))
    except BaseException:
        queue.put((rank, traceback.format_exc()))


def on_ranks(body, count, folder):
    """What `body(rank, count)` returned on each rank, a process of its own; a text for one that raised."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [
        context.Process(target=rank_main, args=(sys.path, queue, body, rank, count, str(folder)))
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    results = dict(queue.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join(30)
        assert rank.exitcode == 0
    return [results[rank] for rank in range(count)]


def broadcasts(rank, count):
    assert distributed.is_initialized() and not distributed.uses_torch() and "torch" not in sys.modules
    for size in (0, 3, 5_000, 700_001):
        for source in (0, count - 1):
            array = numpy.arange(size, dtype=numpy.float32) + rank
            distributed.broadcast(array, source)
            numpy.testing.assert_array_equal(array, numpy.arange(size, dtype=numpy.float32) + source)
    parts = numpy.zeros((6, 400), numpy.int64)[:, ::2]
    parts[...] = rank + 1
    distributed.broadcast(parts, src=1)
    assert (parts == 2).all() and not parts.flags.c_contiguous
    return "ok"


@pytest.mark.parametrize("count", [2, 3])
def test_every_rank_has_the_sources_array(tmp_path, count):
    assert on_ranks(broadcasts, count, tmp_path) == ["ok"] * count


def groups(rank, count):
    some = distributed.new_group([2, 0])
    others = distributed.new_group([1])
    array = numpy.full(50_000, rank)
    distributed.broadcast(array, src=2, group=some)  # nothing happens on a rank outside
    distributed.barrier(group=others)
    total = numpy.array([rank + 1.0, 10.0])
    distributed.all_reduce(total)
    largest = numpy.array([rank])
    distributed.all_reduce(largest, op="ReduceOp.MAX", group=some)
    names = [None] * count
    distributed.all_gather_object(names, {"rank": rank})
    distributed.barrier()
    return int(array[0]), total.tolist(), int(largest[0]), [name["rank"] for name in names]


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "localhost"])
def test_the_master_may_be_written_in_several_ways(tmp_path, host):
    if ":" in host:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
    found = {}

    def rank(number):
        group = _process_group.join(number, 2, FileStore(tmp_path), host=host, timeout=timedelta(seconds=60))
        found[number] = [None, None]
        group.all_gather_object(found[number], f"rank {number}", None)
        group.leave()

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    assert found == {number: ["rank 0", "rank 1"] for number in range(2)}


def test_groups_and_the_smaller_collectives(tmp_path):
    assert on_ranks(groups, 3, tmp_path) == [
        (2, [6.0, 30.0], 2, [0, 1, 2]),
        (1, [6.0, 30.0], 1, [0, 1, 2]),
        (2, [6.0, 30.0], 2, [0, 1, 2]),
    ]


def odd_sizes(rank, count):
    try:
        distributed.broadcast(numpy.zeros(100_000 + rank, numpy.uint8))
    except ValueError as error:
        return "equal size" in str(error)
    return None


def test_sizes_that_differ_are_an_error_on_all_ranks(tmp_path):
    assert on_ranks(odd_sizes, 2, tmp_path) == [True, True]


def killed(rank, count):
    if rank == 1:
        distributed._ours._seat.leave()
        return "left"
    try:
        distributed.broadcast(numpy.zeros(100_000), src=0)
    except checkpoint_engine.PeerLostError as error:
        return "rank 1" in str(error)
    return None


def test_a_rank_that_is_gone_is_named(tmp_path):
    assert on_ranks(killed, 2, tmp_path) == [True, "left"]


def late(rank, count):
    outcome = "late"
    if rank == 0:
        group = distributed._group()
        patience, group._timeout = group._timeout, 0.2
        with pytest.raises(checkpoint_engine.DeadlineExceededError, match="rank 1") as raised:
            distributed.barrier()
        outcome, group._timeout = str(raised.value), patience
    distributed.all_gather_object([], None)  # rank 1 has stayed until then
    return outcome


def test_a_rank_that_does_not_come_is_named(tmp_path):
    found = on_ranks(late, 2, tmp_path)
    assert "rank 1" in found[0] and found[1] == "late"


@pytest.fixture
def alone():
    distributed.init_process_group(0, 1)
    yield
    distributed.destroy_process_group()


def test_one_rank_alone(alone):
    array = numpy.arange(100_000)
    distributed.broadcast(array)
    distributed.all_reduce(array)
    numpy.testing.assert_array_equal(array, numpy.arange(100_000))
    with pytest.raises(RuntimeError, match="already"):
        distributed.init_process_group(0, 1)
    with pytest.raises(ValueError, match="JSON"):
        distributed.all_gather_object([None], object())
    with pytest.raises(ValueError, match="no reduction"):
        distributed.all_reduce(array, op="xor")
    with pytest.raises(ValueError, match="no ranks"):
        distributed.new_group([0, 1])
    with pytest.raises(ValueError, match="list is neither"):
        distributed.broadcast([1, 2])


def test_without_a_group():
    assert not distributed.is_initialized()
    with pytest.raises(RuntimeError, match="init_process_group"):
        distributed.barrier()
    with pytest.raises(ValueError, match="gloo"):
        distributed.use_backend("gloo")
    with pytest.raises(ValueError, match="store"):
        distributed.init_process_group(1, 2, None)


class NotToBeUsed:
    """torch's default group, which is a trainer's."""

    __spec__ = None  # what an import looks at (Python 3.13)

    def is_initialized(self):
        return True

    def __getattr__(self, name):
        raise AssertionError(f"torch.distributed.{name} is of the trainer's group")


@pytest.fixture
def trainer(monkeypatch):
    """A process with torch loaded, and a default group of its own; what was asked of torch's other objects."""
    calls = []

    class Gloo:
        def __init__(self, store, rank, size, timeout):
            calls.append((store, rank, size, timeout.total_seconds()))

        def allreduce(self, tensor, op):
            calls.append((tensor, op))
            return types.SimpleNamespace(wait=lambda: None)

        def shutdown(self):
            calls.append("shutdown")

    modules = NotToBeUsed()
    modules.HashStore = lambda: types.SimpleNamespace(add=lambda key, amount: amount)
    modules.PrefixStore = lambda prefix, store: prefix
    modules.ReduceOp = types.SimpleNamespace(SUM="the sum")
    modules.ProcessGroupGloo = Gloo

    class Zero:
        detach = contiguous = lambda self: self
        data_ptr = lambda self: 7

    torch = types.ModuleType("torch")
    torch.distributed, torch.cuda = modules, types.SimpleNamespace(is_available=lambda: False)
    torch.device, torch.zeros = lambda kind: kind, lambda count, device: Zero()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", modules)
    distributed.use_backend("vllm_nccl")
    yield calls
    distributed.use_backend(None)


def test_a_separate_group_leaves_torchs_default_group_alone(trainer):
    assert not distributed.is_initialized()
    with pytest.raises(RuntimeError, match="init_process_group"):
        distributed.destroy_process_group()
    distributed.init_process_group(0, 1, timeout=timedelta(seconds=9))
    assert distributed.is_initialized() and not distributed.uses_torch()
    with pytest.raises(RuntimeError, match="already"):
        distributed.init_process_group(0, 1)
    some = distributed.new_group([0])
    distributed.barrier(some)
    distributed.destroy_process_group(some)
    with pytest.raises(RuntimeError, match="destroyed"):
        distributed.barrier(some)
    distributed.barrier()
    distributed.destroy_process_group()
    assert not distributed.is_initialized()
    assert [call[1] for call in trainer if len(call) == 2] == ["the sum"] * 2
    assert [call for call in trainer if len(call) != 2] == [("0", 0, 1, 9.0), ("1", 0, 1, 9.0), "shutdown", "shutdown"]
    for wrong, why in (({"ranks": [0, 1]}, "no ranks"), ({"ranks": [0, 0]}, "no ranks")):
        distributed.init_process_group(0, 1)
        with pytest.raises(ValueError, match=why):
            distributed.new_group(**wrong)
        distributed.destroy_process_group()
    with pytest.raises(ValueError, match="store of torch"):
        distributed.init_process_group(0, 2)
    with pytest.raises(ValueError, match="mpi"):
        distributed.init_process_group(0, 1, backend="mpi")


def test_a_server_ends_the_group_that_it_has_made_and_no_other():
    with ParameterServer(rank=0, world_size=1, device="host", job=f"groups-{os.getpid()}") as server:
        server.register_checkpoint("c", named_tensors={"a": numpy.arange(3)})
        server.gather_metas("c")
        server.init_process_group()
        distributed.destroy_process_group()
        distributed.init_process_group(0, 1)  # the program's own
        try:
            server.abort(server.prepare("c"))
            assert distributed.is_initialized()
        finally:
            distributed.destroy_process_group()


def server_rank(path, queue, rank, port):
    sys.path[:0] = path
    with ParameterServer(
        rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, device="host", job=f"group-{port}"
    ) as server:
        server.init_process_group(timeout=timedelta(seconds=60))
        array = numpy.full(30_000, rank)
        distributed.broadcast(array, src=1)
        server.register_checkpoint("c", named_tensors={"a": array} if rank == 0 else {})
        server.gather_metas("c")
        # No worker ever comes: that ends the update, which ends the group all the same.
        try:
            server.update("c", lambda _: 1 / 0, timeout=30)
        except checkpoint_engine.CheckpointEngineError as error:
            queue.put((int(array[0]), distributed.is_initialized(), "ZeroDivisionError" in str(error)))


def test_a_parameter_server_makes_the_default_group_and_update_ends_it():
    context = multiprocessing.get_context("spawn")
    queue, port = context.Queue(), free_port()
    ranks = [context.Process(target=server_rank, args=(sys.path, queue, rank, port)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    assert [queue.get(timeout=120) for _ in ranks] == [(1, False, True)] * 2
    for rank in ranks:
        rank.join(30)
        assert rank.exitcode == 0, os.getpid()

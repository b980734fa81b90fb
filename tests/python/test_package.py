"""The Python package without torch: numpy tensors through ranks and workers on the host device."""
import json
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest

import checkpoint_engine
from checkpoint_engine import distributed
from checkpoint_engine.ps import ParameterServer
from checkpoint_engine.worker import update_weights_from_ipc
from conftest import ROOT, free_port, wait_for

# A shell that starts the tests in the background has the signal ignored, and so have the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def make_tensors(layers=3, seed=1):
    random = numpy.random.default_rng(seed)
    tensors = {"empty": numpy.zeros((0, 3), numpy.float16), "scalar": numpy.array(seed, numpy.int64)}
    for layer in range(layers):
        tensors[f"model.layers.{layer}.weight"] = random.standard_normal((64, 33), numpy.float32)
        tensors[f"model.layers.{layer}.flags"] = random.integers(0, 2, 101).astype(bool)
    return tensors


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        numpy.testing.assert_array_equal(found[name], tensor, err_msg=name)


class Worker:
    """What an engine does, on the threads of the calls."""

    def __init__(self):
        self.weights = {}
        self.finished = 0

    def run(self, weights):
        for name, tensor in weights:
            self.weights[name] = numpy.array(tensor)

    def hook(self):
        self.finished += 1

    def update(self, address):
        update_weights_from_ipc(None, address, None, run=self.run, post_hook=self.hook, timeout=30)


@pytest.fixture
def server(request):
    with ParameterServer(rank=0, world_size=1, device="host", job=f"{request.node.name}-{os.getpid()}") as server:
        yield server


def call(worker):
    return lambda addresses: worker.update(addresses[0][1])


def test_nothing_heavy_is_imported():
    code = "import sys, checkpoint_engine; print(*sorted({'torch', 'numpy', 'zmq'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}).stdout.strip() == ""


def test_an_update_gives_the_worker_what_was_registered(server):
    expected = make_tensors()
    worker, reports = Worker(), []
    server.register_checkpoint("first", named_tensors=expected)
    server.gather_metas("first")
    assert server.update("first", call(worker), timeout=30, report=reports.append) is None
    assert_equal(worker.weights, expected)
    assert worker.finished == 1
    [report] = reports
    assert report.wire == "native" and report.verified_tensors == report.total_tensors == len(expected)
    assert "deliver" in {stage.name for stage in report.stages}


def test_strange_layouts_are_made_right(server):
    base = numpy.arange(24, dtype=numpy.int32).reshape(4, 6)
    tensors = {"t": base.T, "step": base[:, ::2], "swapped": base.astype(">i4"), "plain": base}
    worker = Worker()
    server.register_checkpoint("c", named_tensors=tensors)
    base[:] = 0  # the engine has its own copy
    server.gather_metas("c")
    server.update("c", call(worker), timeout=30)
    base = numpy.arange(24, dtype=numpy.int32).reshape(4, 6)
    assert_equal(worker.weights, {"t": base.T, "step": base[:, ::2], "swapped": base, "plain": base})


@pytest.mark.parametrize("tensor, why", [
    (numpy.array([object()]), "dtype object"),
    (numpy.zeros(2, numpy.complex128), "complex128"),
    (numpy.zeros(2, [("a", "f4")]), "dtype"),
    ([1.0, 2.0], "is a list"),
])
def test_what_cannot_be_registered_is_refused_by_name(server, tensor, why):
    with pytest.raises(ValueError, match=f'"odd.one".*{why}'):
        server.register_checkpoint("c", named_tensors={"odd.one": tensor})


def test_files_of_other_kinds_are_refused_by_name(server):
    with pytest.raises(ValueError, match="model.0.npy"):
        server.register_checkpoint("c", files=["/somewhere/model.0.npy"])
    with pytest.raises(checkpoint_engine.CheckpointEngineError, match="gone.safetensors"):
        server.register_checkpoint("c", files=["/somewhere/gone.safetensors"])


def test_files_and_tensors_together(server, tmp_path):
    from safetensors.numpy import save_file

    on_disk = make_tensors(seed=2)
    save_file(on_disk, tmp_path / "model.safetensors")
    other = {"scalar": numpy.array(99, numpy.int64), "more": numpy.ones(5, numpy.uint8)}
    worker = Worker()
    server.register_checkpoint("c", files=[str(tmp_path / "model.safetensors")], named_tensors=other)
    server.gather_metas("c")
    server.update("c", call(worker), timeout=30)
    assert_equal(worker.weights, {**on_disk, **other})


def test_an_error_of_req_func_is_the_updates_error(server):
    server.register_checkpoint("c", named_tensors=make_tensors())
    server.gather_metas("c")

    def fail(addresses):
        raise KeyError("no such engine")

    with pytest.raises(checkpoint_engine.CheckpointEngineError, match="req_func raised KeyError: 'no such engine'") as caught:
        server.update("c", fail, timeout=30)
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.rank == 0
    worker = Worker()
    server.update("c", call(worker), timeout=30)
    assert worker.finished == 1


def test_an_error_of_run_reaches_both_sides(server):
    server.register_checkpoint("c", named_tensors=make_tensors())
    server.gather_metas("c")
    raised = []

    def request(addresses):
        def run(weights):
            raise LookupError("no parameter of that name")

        try:
            update_weights_from_ipc(None, addresses[0][1], None, run=run, timeout=30)
        except LookupError as error:
            raised.append(error)

    with pytest.raises(checkpoint_engine.CheckpointEngineError, match="LookupError: no parameter of that name"):
        server.update("c", request, timeout=30)
    wait_for(lambda: raised, what="the worker's own error")


class WithoutText(Exception):
    def __str__(self):
        raise ValueError("no text")


class WithoutAny(WithoutText):
    __repr__ = WithoutText.__str__


@pytest.mark.parametrize("where", ["req_func", "run"])
@pytest.mark.parametrize("error, text", [
    (OSError("cannot open \udcff"), r"OSError: cannot open \\udcff"),
    (WithoutText(), r"WithoutText: WithoutText\(\)"),
    (WithoutAny(), "WithoutAny: .it has no text"),
])
def test_an_error_whose_text_cannot_be_had_ends_the_update_all_the_same(server, where, error, text):
    server.register_checkpoint("c", named_tensors=make_tensors())
    server.gather_metas("c")
    raised = []

    def fail(*_):
        raise error

    def request(addresses):
        try:
            update_weights_from_ipc(None, addresses[0][1], None, run=fail, timeout=30)
        except Exception as caught:
            raised.append(caught)

    with pytest.raises(checkpoint_engine.CheckpointEngineError, match=f"raised {text}") as caught:
        server.update("c", fail if where == "req_func" else request, timeout=30)
    assert "deadline" not in caught.value.code
    if where == "run":
        wait_for(lambda: raised, what="the worker's own error")
        assert raised == [error]


def test_a_tensor_that_the_engine_keeps_is_an_error_by_name(server):
    server.register_checkpoint("c", named_tensors={"kept": numpy.arange(10)})
    server.gather_metas("c")
    kept = []

    def request(addresses):
        update_weights_from_ipc(None, addresses[0][1], None, run=kept.extend, timeout=30)

    with pytest.raises(checkpoint_engine.CheckpointEngineError, match='"kept".*copy'):
        server.update("c", request, timeout=30)
    assert kept[0][1].sum() >= 0  # still mapped


def test_deadline(server):
    server.register_checkpoint("c", named_tensors=make_tensors())
    server.gather_metas("c")
    with pytest.raises(TimeoutError):
        server.update("c", lambda addresses: None, timeout=1)


def test_prepare_abort_commit(server):
    expected = make_tensors()
    server.register_checkpoint("c", named_tensors=expected)
    server.gather_metas("c")
    with server.prepare("c", timeout=30):
        pass  # given up
    prepared = server.prepare("c", timeout=30)
    server.abort(prepared, "not today")
    with pytest.raises(ValueError):
        server.commit(prepared, lambda addresses: None)
    worker = Worker()
    assert server.commit(server.prepare("c", timeout=30), call(worker)).loaded_tensors == len(expected)
    assert_equal(worker.weights, expected)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_default_group_ends_with_a_prepared_update(server, end):
    server.register_checkpoint("c", named_tensors=make_tensors())
    server.gather_metas("c")
    server.init_process_group()
    prepared = server.prepare("c", timeout=30)
    assert distributed.is_initialized()
    if end == "commit":
        server.commit(prepared, call(Worker()))
    else:
        server.abort(prepared)
    assert not distributed.is_initialized()


def test_metas_can_be_pickled_and_loaded(server):
    expected = make_tensors()
    server.register_checkpoint("c", named_tensors=expected)
    server.gather_metas("c")
    metas = pickle.loads(pickle.dumps(server.get_metas()))
    [entry] = metas[0].memory_buffer_metas_list
    assert {meta.name: (meta.dtype, meta.shape) for meta in entry.metas} == {
        name: (f"torch.{tensor.dtype}", tensor.shape) for name, tensor in expected.items()}
    assert all(meta.aligned_size % 256 == 0 for meta in entry.metas)
    server.load_metas(metas)
    assert server.export_metas() == metas.exported
    for again in (metas.exported, dict(metas), json.loads(json.dumps(metas, default=vars))):
        server.load_metas(again)
        assert server.export_metas() == metas.exported
    for again in ([metas.exported], [dict(metas), metas]):
        server.load_metas(again)
        assert sum(len(entry.memory_buffer_metas_list[0].metas) for entry in server.get_metas().values()) == len(expected)
    metas[0].p2p_store_addr = "10.0.0.7:12345"
    with pytest.raises(checkpoint_engine.CheckpointEngineError, match="the field's metas: rank 0"):
        server.load_metas(dict(metas))
    with pytest.raises(ValueError, match="metas"):
        server.load_metas({})
    with pytest.raises(ValueError, match="metas"):
        server.load_metas([])


def test_the_shared_pool_and_force(server):
    for name in ("one", "two"):
        server.register_checkpoint(name, named_tensors=make_tensors(), use_shared_memory_pool=True)
        with pytest.raises(checkpoint_engine.CheckpointEngineError, match=name):
            server.register_checkpoint("third", named_tensors=make_tensors(), use_shared_memory_pool=True)
        server.unregister_checkpoint(name, force=name == "two")


@pytest.mark.parametrize("pool", [True, False])
def test_a_file_in_shared_memory_is_deleted_where_it_is_used_in_place_alone(server, pool):
    from safetensors.numpy import save_file

    path = pathlib.Path(f"/dev/shm/pool-{os.getpid()}.safetensors")
    save_file(make_tensors(), path)
    try:
        server.register_checkpoint("c", files=[path], use_shared_memory_pool=pool)
        server.gather_metas("c")
        assert path.exists() == pool
        worker = Worker()
        server.update("c", call(worker), timeout=30)
        assert_equal(worker.weights, make_tensors())
    finally:
        path.unlink(missing_ok=True)


def test_unregistering_an_unknown_name_is_a_warning(server, caplog):
    server.unregister_checkpoint("nobody")
    assert "nobody" in caplog.text


def test_closed_is_closed(server):
    server.close()
    server.close()
    with pytest.raises(checkpoint_engine.CheckpointEngineError, match="closed"):
        server.gather_metas("c")


def two_ranks(rank, port, job, outcome):
    """A process that is one of two ranks, and the worker of its device."""
    server = ParameterServer(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, device="host", job=job)
    mine = {name: tensor for i, (name, tensor) in enumerate(make_tensors().items()) if i % 2 == rank}
    server.register_checkpoint("c", named_tensors=mine)
    server.gather_metas("c")
    seen = []
    for ranks in (None, [], [1], [0, 1]):
        worker = Worker()

        def request(addresses, worker=worker):
            seen.append(addresses)
            worker.update(addresses[rank][1])

        server.update("c", request, timeout=60, ranks=ranks)
        if not ranks or rank in ranks:
            assert_equal(worker.weights, make_tensors())
        else:
            assert not worker.weights
    assert sorted(server.get_metas()) == [0, 1]
    server.store_based_barrier()
    outcome.put((rank, [[key for key, _ in addresses] for addresses in seen]))
    server.close()


def test_ranks_none_empty_and_some():
    context = multiprocessing.get_context("spawn")
    outcome, port, job = context.Queue(), free_port(), f"two-ranks-{os.getpid()}"
    processes = [context.Process(target=two_ranks, args=(rank, port, job, outcome)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    seen = dict(outcome.get(timeout=5) for _ in processes)
    # A call has the entries of all ranks, and only recipients are called.
    assert [len(keys) for keys in seen[0]] == [2, 2, 2]
    assert [len(keys) for keys in seen[1]] == [2, 2, 2, 2]
    assert seen[1][0] == ["CPU-0", "CPU-1"] and seen[1][2] == ["", "CPU-0"]


INTERRUPTED = """
    import sys, threading, time, numpy
    from checkpoint_engine import CheckpointEngineError, update_weights_from_ipc
    from checkpoint_engine.ps import ParameterServer

    job, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    interrupted = threading.Event()

    def join(rank):
        server = ParameterServer(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, device="host", job=job)
        server.register_checkpoint("c", named_tensors={f"w{rank}": numpy.arange(1000)})
        return server

    def again(server):
        server.gather_metas("c")
        server.update("c", lambda addresses: update_weights_from_ipc(
            None, addresses[server.rank][1], None, run=lambda weights: None), timeout=60)

    def rank_1():
        if what == "join":
            interrupted.wait()
        with join(1) as server:
            if what == "update":
                server.gather_metas("c")
                try:
                    server.update("c", lambda addresses: time.sleep(60), timeout=60)
                except CheckpointEngineError:
                    pass
            interrupted.wait()
            try:
                again(server)
            except CheckpointEngineError as error:
                if "gave up" not in str(error):  # its part of what rank 0 gave up, which it may still have to hear of
                    raise
                again(server)

    other = threading.Thread(target=rank_1, daemon=True)
    other.start()
    server = None if what == "join" else join(0)
    if what == "update":
        server.gather_metas("c")
    calls = {
        "join": lambda: join(0),
        "gather": lambda: server.gather_metas("c"),
        "barrier": lambda: server.store_based_barrier(),
        "update": lambda: server.update("c", lambda addresses: time.sleep(60), timeout=60),
    }
    print("called", flush=True)
    try:
        calls[what]()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    interrupted.set()
    server = server or join(0)
    again(server)
    other.join(60)
    server.close()
    print("again", flush=True)
"""


@pytest.mark.parametrize("what", ["join", "gather", "barrier", "update"])
def test_ctrl_c_ends_a_call_that_waits_and_the_next_update_works(what):
    """On one of two ranks, the other one is a thread of the same process."""
    arguments = [f"ctrl-c-{what}-{os.getpid()}", str(free_port()), what]
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(INTERRUPTED), *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        assert process.stdout.readline() == "called\n", process.communicate(timeout=10)
        time.sleep(0.3)  # by then it mostly waits
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n", process.communicate(timeout=10)
        # Promised is a second; the rest is for machines that are busy.
        assert time.monotonic() - begin < 4
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (output, process.returncode) == ("again\n", 0), errors


INTERRUPTED_IN_ITS_QUEUE = """
    import os, signal, sys, threading, time
    import numpy
    from checkpoint_engine.ps import ParameterServer
    from checkpoint_engine.worker import update_weights_from_ipc
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job, what = sys.argv[1:]
    tensors = {"a": numpy.arange(1000)}
    loaded, called, release = [], threading.Event(), threading.Event()

    def receive(addresses):
        update_weights_from_ipc(None, addresses[0][1], None, run=lambda weights: loaded.append(len(weights)), timeout=30)

    def request(addresses):
        called.set()
        release.wait(60)
        receive(addresses)

    def interrupt():
        time.sleep(0.3)  # by then it mostly waits
        os.kill(os.getpid(), signal.SIGINT)

    with ParameterServer(rank=0, world_size=1, device="host", job=job) as server:
        server.register_checkpoint("a", named_tensors=tensors)
        server.register_checkpoint("spare", named_tensors=tensors)
        server.gather_metas("a")
        other = threading.Thread(target=server.update, args=("a", request), kwargs={"timeout": 60})
        other.start()
        called.wait(60)
        calls = {
            "register": lambda: server.register_checkpoint("b", named_tensors=tensors),
            "unregister": lambda: server.unregister_checkpoint("spare"),
            "update": lambda: server.update("a", receive, timeout=60),
        }
        try:
            threading.Thread(target=interrupt).start()
            calls[what]()
            print("not interrupted")
        except KeyboardInterrupt:
            pass
        release.set()
        other.join(60)
        server.gather_metas("a")  # behind whatever was carried out all the same
        print("loaded", loaded)
        calls[what]()
        print("done")
"""


@pytest.mark.parametrize("what", ["register", "unregister", "update"])
def test_ctrl_c_in_a_call_that_waits_behind_another_threads_ends_that_call_alone(what):
    arguments = [f"queue-{what}-{os.getpid()}", what]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(INTERRUPTED_IN_ITS_QUEUE), *arguments], capture_output=True,
                          text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.stdout, done.stderr) == ("loaded [1]\ndone\n", ""), done.stdout + done.stderr


OUTLIVED = """
    import sys, numpy
    from checkpoint_engine.ps import ParameterServer
    server = ParameterServer(rank=0, world_size=1, device="host", job=sys.argv[1])
    server.register_checkpoint("c", named_tensors={"a": numpy.arange(1000)})
    server.gather_metas("c")
    prepared = server.prepare("c", timeout=30)
    server.close()
    del prepared
    print("over", flush=True)
"""


def test_a_prepared_update_may_be_dropped_after_its_server():
    """In a process of its own: what would hang holds the interpreter."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(OUTLIVED), f"outlived-{os.getpid()}"], capture_output=True,
                          text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.stdout, done.returncode) == ("over\n", 0), done.stderr


def test_other_threads_run_while_an_update_waits(server):
    server.register_checkpoint("c", named_tensors=make_tensors())
    server.gather_metas("c")
    worker, release = Worker(), threading.Event()

    def request(addresses):
        assert release.wait(30)
        worker.update(addresses[0][1])

    waiting = threading.Thread(target=server.update, args=("c", request), kwargs={"timeout": 60})
    waiting.start()
    release.set()  # runs only if the update has let go of the interpreter
    waiting.join(60)
    assert worker.finished == 1


def test_every_call_that_waits_for_other_ranks_lets_other_threads_run():
    """Two ranks and their workers are threads of this process: one that kept the interpreter would wait for ever."""
    port, job, outcome = free_port(), f"threads-{os.getpid()}", {}

    def rank(number):
        with ParameterServer(rank=number, world_size=2, master_addr="127.0.0.1", master_port=port, device="host",
                             job=job) as server:
            server.register_checkpoint("c", named_tensors={f"w{number}": numpy.arange(5)})
            server.gather_metas("c")
            server.store_based_barrier()
            gathered = server._server.all_gather(f"rank {number}".encode(), 60)
            prepared = server.prepare("c", timeout=60)
            found = {}
            server.commit(prepared, lambda addresses: update_weights_from_ipc(
                None, addresses[number][1], None, run=lambda weights: found.update(dict.fromkeys(name for name, _ in weights))))
            outcome[number] = (gathered, sorted(found))

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    assert outcome == {number: ([b"rank 0", b"rank 1"], ["w0", "w1"]) for number in range(2)}


def test_the_version_is_the_programs():
    assert f"VERSION {checkpoint_engine.__version__}" in (ROOT / "CMakeLists.txt").read_text()


def test_ctrl_c_ends_a_worker_that_waits():
    job, port = f"worker-ctrl-c-{os.getpid()}", free_port()
    failed, addresses, have_address, interrupted = [], {}, threading.Event(), threading.Event()

    def rank(number):
        with ParameterServer(rank=number, world_size=2, master_addr="127.0.0.1", master_port=port, device="host",
                             job=job) as server:
            server.register_checkpoint("c", named_tensors=make_tensors() if number == 0 else {})
            server.gather_metas("c")

            def request(entries):
                if number == 0:
                    addresses.update(entries)
                    have_address.set()
                else:
                    interrupted.wait(60)
                    raise RuntimeError("that is all")

            with pytest.raises(checkpoint_engine.CheckpointEngineError, match="that is all|interrupted|KeyboardInterrupt"):
                server.update("c", request, timeout=60)
            failed.append(number)

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in ranks:
        thread.start()
    assert have_address.wait(60)
    # The worker of rank 1 never comes, so that this one waits for the end when it has loaded everything.
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        update_weights_from_ipc(None, addresses["CPU-0"], None, run=lambda weights: interrupt.start())
    interrupted.set()
    for thread in ranks:
        thread.join(60)
    assert sorted(failed) == [0, 1]

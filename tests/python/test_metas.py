"""What get_metas gives and load_metas takes, as a program of the field uses them: jobs that fill themselves out of another's memory."""
import copy
import os
import pickle

import numpy
import pytest

from checkpoint_engine import CheckpointEngineError, update_weights_from_ipc
from checkpoint_engine.data_types import Metas
from checkpoint_engine.ps import ParameterServer

TENSORS = {"a": numpy.arange(1000), "b": numpy.ones((3, 5), numpy.float32)}


@pytest.fixture
def make_server(request):
    made = []

    def make():
        job = f"{request.node.name}-{os.getpid()}-{len(made)}"
        made.append(ParameterServer(rank=0, world_size=1, device="host", job=job))
        return made[-1]

    yield make
    for server in reversed(made):
        server.close()


@pytest.fixture
def owner(make_server):
    server = make_server()
    server.register_checkpoint("owned", named_tensors=TENSORS)
    server.gather_metas("owned")
    return server


def updated(server, name):
    """What a worker has after an update under that name."""
    found = {}

    def request(addresses):
        update_weights_from_ipc(None, addresses[0][1], None, timeout=60,
                                run=lambda weights: found.update((name, tensor.copy()) for name, tensor in weights))

    server.update(name, request, timeout=60)
    return found


def test_there_are_none_before_they_are_gathered_and_after_the_checkpoint(make_server):
    server = make_server()
    assert server.get_metas() == {}
    server.register_checkpoint("c", named_tensors=TENSORS)
    assert server.get_metas() == {}
    server.gather_metas("c")
    assert list(server.get_metas()) == [0]
    server.unregister_checkpoint("c")
    assert server.get_metas() == {}
    with pytest.raises(CheckpointEngineError, match="gather_metas"):
        server.export_metas()
    server.close()
    with pytest.raises(CheckpointEngineError, match="closed"):
        server.get_metas()


def test_a_job_that_loads_them_may_call_the_checkpoint_as_it_likes(owner, make_server):
    """As SGLang's update.py does with --load-metas-file: it gathers under its own name, where nothing is registered, and loads."""
    metas = pickle.loads(pickle.dumps(owner.get_metas()))
    joiner = make_server()
    joiner.gather_metas("my-checkpoint-iter-0")
    joiner.load_metas(metas)
    found = updated(joiner, "my-checkpoint-iter-0")
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        numpy.testing.assert_array_equal(found[name], tensor)
    joiner.unregister_checkpoint("my-checkpoint-iter-0")  # a warning, as in the field's package
    assert updated(joiner, "owned").keys() == TENSORS.keys()


def test_metas_that_were_changed_load_as_they_are(owner, make_server):
    joiner = make_server()
    metas = owner.get_metas()
    joiner.load_metas(copy.deepcopy(metas))
    assert joiner.export_metas() == owner.export_metas()
    metas.clear()
    with pytest.raises(ValueError, match="no rank has any tensor"):
        joiner.load_metas(metas)
    with pytest.raises(ValueError, match="no rank has any tensor"):
        joiner.load_metas(Metas())
    metas = owner.get_metas()
    metas[0].memory_buffer_metas_list[0].metas[0].name = "another"
    with pytest.raises(ValueError, match="p2p_store_addr"):
        joiner.load_metas(metas)


def test_an_owner_that_is_gone_can_be_left_out(make_server):
    """Of two jobs that hold the same checkpoint, beside one of which another tensor is."""
    one, other = make_server(), make_server()
    for server, more in ((one, {}), (other, {"more": numpy.zeros(7)})):
        server.register_checkpoint("c", named_tensors={**TENSORS, **more})
        server.gather_metas("c")
    joiner = make_server()
    joiner.load_metas([one.get_metas(), other.get_metas()])
    assert updated(joiner, "c").keys() == {"a", "b", "more"}
    both = joiner.get_metas()
    [gone] = [rank for rank, entry in both.items() if len(entry.memory_buffer_metas_list[0].metas) == 3]
    del both[gone]
    other.unregister_checkpoint("c")
    joiner.load_metas(both)
    assert updated(joiner, "c").keys() == {"a", "b"}

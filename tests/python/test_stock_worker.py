"""Our worker at the other end of the field's rank: its messages over real sockets, a buffer in a file."""
import pathlib
import pickle
import threading
import uuid

import numpy
import pytest

from checkpoint_engine import DeadlineExceededError, _stock_worker
from checkpoint_engine.worker import update_weights_from_ipc
from conftest import ROOT

zmq = pytest.importorskip("zmq")

NONE = (ROOT / "tests" / "data" / "wire" / "none.pkl").read_bytes()
ERROR = (ROOT / "tests" / "data" / "wire" / "error.pkl").read_bytes()


def handle(path, size):
    """As torch's reduction of a tensor in shared memory: a partial of from_file, and its arguments."""
    return (b"\x80\x03cfunctools\npartial\nctorch\nfrom_file\n\x85R(ctorch\nfrom_file\n)}X\x05\x00\x00\x00dtype"
            b"ctorch\nuint8\nsNtb(X" + len(path).to_bytes(4, "little") + path.encode() + b"\x88J" + size.to_bytes(4, "little")
            + b"t\x86.")


def bucket(name, shape, offset):
    """A list of one float32 tensor."""
    content = pickle.dumps([{"name": name, "shape": shape, "offset": offset}], 3)
    assert content.endswith(b"ua.")
    return content[:-3] + b"X\x05\x00\x00\x00dtypectorch\nfloat32\nua."


class Rank:
    """Sends what it is given, one message after the other, and looks at no answer. All but an exception are answered."""

    def __init__(self, context, messages):
        self.address = f"ipc://@stock-worker-test-{uuid.uuid4()}"
        self.answers = []
        self._socket = context.socket(zmq.REQ)
        self._socket.bind(self.address)
        self._thread = threading.Thread(target=self._send, args=(messages,))
        self._thread.start()

    def _send(self, messages):
        for message in messages:
            self._socket.send(message)
            if not self._socket.poll(1000 if message == ERROR else 30000):
                return
            self.answers.append(self._socket.recv())

    def join(self):
        self._thread.join(60)
        self._socket.close(linger=0)
        return self.answers


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture
def buffer(tmp_path):
    values = numpy.arange(16, dtype=numpy.float32)
    path = pathlib.Path(tmp_path / "buffer")
    path.write_bytes(values.tobytes())
    return handle(str(path), values.nbytes), values


def test_the_tensors_of_its_buckets_are_loaded(context, buffer):
    opened, values = buffer
    found, hooks = {}, []
    rank = Rank(context, [opened, bucket("a", (2, 4), 0), bucket("b", (8,), 32), NONE, NONE])
    update_weights_from_ipc(context, rank.address, None, timeout=30, post_hook=lambda: hooks.append(1),
                            run=lambda weights: found.update((name, numpy.array(tensor)) for name, tensor in weights))
    assert rank.join() == [b""] * 5 and hooks == [1]
    numpy.testing.assert_array_equal(found["a"], values[:8].reshape(2, 4))
    numpy.testing.assert_array_equal(found["b"], values[8:])


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_of_loading_is_raised_also_when_the_rank_goes_on(context, buffer, bad):
    """The rank of 0.4.2 does not look at the answer to its last bucket: what follows it is None, and None again."""
    seen, hooks = [], []

    def run(weights):
        seen.append(weights[0][0])
        if len(seen) > bad:
            raise LookupError(f"no parameter {weights[0][0]}")

    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), bucket("b", (8,), 32), NONE, NONE])
    with pytest.raises(LookupError, match="no parameter a" if bad == 0 else "no parameter b"):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=run, post_hook=lambda: hooks.append(1))
    answers = rank.join()
    assert [b"LookupError" in answer for answer in answers] == [False, bad == 0, True, False, True]
    assert hooks == []


def test_a_tensor_that_was_kept_of_the_last_bucket_is_named(context, buffer):
    kept = []
    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), NONE, NONE])
    with pytest.raises(RuntimeError, match='"a" first.*must copy'):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=kept.extend, post_hook=lambda: kept.clear())
    assert len(rank.join()) == 4 and len(kept) == 1


@pytest.mark.parametrize("last", [False, True])
def test_a_bucket_that_cannot_be_read_is_answered(context, buffer, last):
    """The rank has no deadline there: it agrees with the others on the error, or, behind its last bucket, goes on."""
    unknown = bucket("b", (8,), 32).replace(b"float32", b"complex128")
    seen = []
    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), unknown, *((NONE, NONE) if last else (ERROR,))])
    with pytest.raises(RuntimeError, match="torch.complex128"):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=lambda weights: seen.append(weights[0][0]))
    assert b"complex128" in rank.join()[2] and seen == ["a"]


def test_the_ranks_own_error_is_raised(context, buffer):
    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), ERROR])
    with pytest.raises(RuntimeError, match="Some workers failed to update weights"):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=lambda weights: None)
    assert len(rank.join()) == 2


def test_an_error_of_the_post_hook_is_answered(context, buffer):
    """The rank of 0.4.2 waits for that answer without a deadline, and all its ranks for each other behind it."""
    def hook():
        raise RuntimeError("the update lacks weights of this model")

    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), NONE, NONE])
    with pytest.raises(RuntimeError, match="lacks weights"):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=lambda weights: None, post_hook=hook)
    assert b"lacks weights" in rank.join()[3]


def test_a_buffer_that_cannot_be_released_is_answered(context, buffer, monkeypatch):
    def close(_):
        raise BufferError("exported pointers exist")

    hooks = []
    monkeypatch.setattr(_stock_worker._FileMapping, "close", close)
    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), NONE, NONE])
    with pytest.raises(BufferError):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=lambda weights: None, post_hook=lambda: hooks.append(1))
    assert [b"BufferError" in answer for answer in rank.join()] == [False, False, True, True] and hooks == []


def test_a_bucket_behind_the_release_is_answered(context, buffer):
    seen = []
    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), NONE, bucket("b", (8,), 32), NONE])
    with pytest.raises(RuntimeError, match="after it had released"):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=lambda weights: seen.append(weights[0][0]))
    assert [b"released" in answer for answer in rank.join()] == [False, False, False, True, True] and seen == ["a"]


def test_an_interrupted_load_is_answered(context, buffer):
    def run(weights):
        raise KeyboardInterrupt

    rank = Rank(context, [buffer[0], bucket("a", (8,), 0)])
    with pytest.raises(KeyboardInterrupt):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=run)
    assert b"KeyboardInterrupt" in rank.join()[1]


@pytest.mark.parametrize("behind, answers", [([], 1), ([ERROR], 1), ([NONE, NONE], 3)])
def test_a_first_message_that_is_no_buffer_is_the_error(context, behind, answers):
    """Whatever the rank sends then, or if it sends nothing."""
    rank = Rank(context, [bucket("a", (8,), 0), *behind])
    with pytest.raises(RuntimeError, match="first message is no buffer"):
        update_weights_from_ipc(context, rank.address, None, timeout=30 if behind else 0.5, run=lambda weights: None)
    assert len(rank.join()) == answers


def test_a_silent_rank_is_told_by_its_address(context):
    rank = Rank(context, [])
    with pytest.raises(DeadlineExceededError, match=rank.address):
        update_weights_from_ipc(context, rank.address, None, timeout=0.2, run=lambda weights: None)
    rank.join()


class WithoutText(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("error, text", [(OSError("cannot open \udcff"), b"cannot open \\udcff"), (WithoutText(), b"WithoutText")])
def test_an_error_whose_text_cannot_be_had_is_answered(context, buffer, error, text):
    def run(weights):
        raise error

    rank = Rank(context, [buffer[0], bucket("a", (8,), 0), NONE, NONE])
    with pytest.raises(type(error)):
        update_weights_from_ipc(context, rank.address, None, timeout=30, run=run)
    answers = rank.join()
    assert len(answers) == 4 and text in answers[1]


def test_not_even_a_traceback_need_be_had(monkeypatch):
    def fail(*_):
        raise ValueError("no traceback")

    monkeypatch.setattr(_stock_worker.traceback, "format_exception", fail)
    assert _stock_worker._traceback_of(OSError("cannot open \udcff")) == b"OSError: cannot open \\udcff"

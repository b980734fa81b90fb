"""What our worker reads of the field's package: its own messages, and nothing else."""
import os
import pickle

import pytest

from checkpoint_engine import _stock_messages as messages
from conftest import ROOT

WIRE = ROOT / "tests" / "data" / "wire"


def test_messages_that_torch_wrote():
    assert messages.read((WIRE / "none.pkl").read_bytes()) is None
    assert messages.read((WIRE / "shm.pkl").read_bytes()) == messages.FileBuffer("/dev/shm/x", 5_000_000_000)
    error = messages.read((WIRE / "error.pkl").read_bytes())
    assert type(error) is RuntimeError and str(error) == "Some workers failed to update weights"
    cuda = messages.read((WIRE / "cuda.pkl").read_bytes())
    assert cuda.bytes == 1 << 34 and len(cuda.handle) == 64 and cuda.storage == "TypedStorage"
    first, *_, last = messages.read((WIRE / "bucket.pkl").read_bytes())
    assert first == messages.StockTensor("model.embed_tokens.weight", "bfloat16", (151936, 1024), 0)
    assert last.shape == (0, 3)


class Evil:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [
    lambda path: (os.system, (f"touch {path}",)),
    lambda path: (eval, (f"open('{path}', 'w')",)),
    lambda path: (exec, (f"open('{path}', 'w')",)),
    lambda path: (os.mkdir, (str(path),)),
])
def test_calls_are_refused_and_not_run(call, tmp_path):
    path = tmp_path / "made"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for payload in (Evil(call(path)), [Evil(call(path))], (Evil(call(path)), ())):
            with pytest.raises(messages.StockMessageError, match="it was not run"):
                messages.read(pickle.dumps(payload, protocol))
    assert not path.exists()


@pytest.mark.parametrize("payload", [
    {"a": 1},
    (1, 2, 3),
    b"bytes",
    [{"name": "a", "dtype": None, "shape": (1,), "offset": 0}],
    [{"name": "a", "dtype": RuntimeError, "shape": (1,), "offset": 0}],
    [{"name": "a"}],
    [1],
])
def test_other_contents_are_refused(payload):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(messages.StockMessageError):
            messages.read(pickle.dumps(payload, protocol))


@pytest.mark.parametrize("message", [
    b"", b"\x80", b"garbage", b"cos\nsystem\n.", b"ctorch\nload\n(X\x01\x00\x00\x00atR.", b"cbuiltins\ngetattr\n.",
    b"cbuiltins\nRuntimeError\nctorch\nSize\n(tb.",  # state for a class
    b"cbuiltins\nRuntimeError\n}X\x04\x00\x00\x00nameX\x0f\x00\x00\x00builtins.foobarssb)R.",  # which would rename it
    b"cbuiltins\nRuntimeError\n}X\x04\x00\x00\x00nameK\x01sb)R.",
    b"cbuiltins\nRuntimeError\nN}X\x04\x00\x00\x00nameX\x04\x00\x00\x00evils\x86b)R.",
    b"cbuiltins\nRuntimeError\n)R}X\x04\x00\x00\x00nameK\x01sb.",
    b"\x80\x03cfunctools\npartial\nctorch\nfrom_file\n\x85R(ctorch\nfrom_file\n)}N tb.", b"(ios\nsystem\n.", b"Pid\n.",
    b"\x80\x02\x82\x01.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
])
def test_damaged_and_hostile_bytes_are_refused(message):
    with pytest.raises(messages.StockMessageError):
        messages.read(message)


@pytest.mark.parametrize("storage", [
    b"ctorch.storage\nTypedStorage\n}X\x04\x00\x00\x00nameX\x18\x00\x00\x00torch.storage.weakrefanysb",
    b"ctorch\nTensor\n",
])
def test_a_buffer_of_another_storage_is_refused(storage):
    whole = (WIRE / "cuda.pkl").read_bytes()
    known = b"ctorch.storage\nTypedStorage\n"
    assert known in whole
    with pytest.raises(messages.StockMessageError):
        messages.read(whole.replace(known, storage))


def test_every_cut_of_a_message_is_refused():
    for name in ("bucket", "cuda", "shm", "error"):
        whole = (WIRE / f"{name}.pkl").read_bytes()
        for end in range(len(whole) - 1):
            with pytest.raises(messages.StockMessageError):
                messages.read(whole[:end])

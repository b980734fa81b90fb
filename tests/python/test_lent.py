"""Buffers on a GPU that are lent to an engine: what is waited for before they are filled again. torch is a stand-in."""
import sys
import types
import weakref

import pytest

from checkpoint_engine import _receiver, _stock_worker
from checkpoint_engine._stock_messages import CudaBuffer, StockTensor


class Device:
    """What happened, in order."""

    def __init__(self):
        self.log = []

    def current_stream(self, device):
        return types.SimpleNamespace(synchronize=lambda: self.log.append(f"stream of {device}"))

    def synchronize(self, device):
        self.log.append(f"device {device}")

    def ipc_collect(self):
        self.log.append("unmapped")


class Raw:
    """A tensor of bytes."""

    device = "cuda:3"

    def numel(self):
        return 64

    def __getitem__(self, bytes):
        return self

    def view(self, what):
        return self


class View(Raw):
    """Keeps what it is a view of."""

    def __init__(self, array):
        self.array = array


class Ring:
    on_device, address = True, 4096

    def __len__(self):
        return 8


@pytest.fixture
def device(monkeypatch):
    cuda = Device()
    torch = types.ModuleType("torch")
    torch.cuda, torch.float32, torch.uint8, torch.Tensor = cuda, "float32", "uint8", Raw
    torch.storage = types.SimpleNamespace(TypedStorage=object)
    torch.as_tensor = lambda array, device: Raw()
    reductions = types.ModuleType("torch.multiprocessing.reductions")
    reductions.rebuild_cuda_tensor = lambda *arguments: Raw()
    for name, module in {"torch": torch, "torch.multiprocessing": types.ModuleType("torch.multiprocessing"),
                         "torch.multiprocessing.reductions": reductions}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return cuda


@pytest.mark.parametrize("current_stream_only, waited", [(True, "stream of 3"), (False, "device 3")])
def test_only_the_loaders_stream_is_waited_for_where_it_is_known(device, current_stream_only, waited):
    loader = _receiver.BucketLoader(3, lambda weights: device.log.append("read"), None, current_stream_only)
    for _ in range(2):
        loader.load([("w", "float32", (2,), Ring())])
    assert device.log == ["read", waited] * 2


def test_an_error_of_loading_holds_nothing_of_the_buffer(device, monkeypatch):
    """vLLM keeps the errors of its workers; their tensors would take the memory of the next update's."""
    monkeypatch.setattr(sys.modules["torch"], "as_tensor", lambda array, device: View(array))
    ring = Ring()
    seen = weakref.ref(ring)

    def run(weights):
        copies = list(weights)
        raise ValueError(f"no room for {len(copies)} tensors")

    with pytest.raises(ValueError) as caught:
        _receiver.BucketLoader(3, run, None).load([("w", "float32", (2,), ring)])
    del ring
    assert seen() is None and caught.value.__traceback__ is not None


@pytest.mark.parametrize("current_stream_only, waited", [(True, "stream of cuda:3"), (False, "device cuda:3")])
def test_so_it_is_with_a_buffer_of_the_fields_rank(device, current_stream_only, waited):
    handle = CudaBuffer(64, "TypedStorage", b"", 64, 0, b"", 0, b"", False)
    mapping = _stock_worker._CudaMapping(handle, 3, current_stream_only)
    mapping.lend([StockTensor("w", "float32", (2,), 0)], lambda weights: device.log.append("read"))
    mapping.close()
    assert device.log == ["read", waited, "unmapped"]

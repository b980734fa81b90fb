"""Tensors of torch and numpy, by what they can do: neither is imported here unless it is loaded already."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .errors import InvalidArgumentError

# Name, torch's name of the dtype, shape, address, bytes: what _core.ParameterServer.register_checkpoint takes.
Described = tuple[str, str, list[int], int, int]

_TORCH_F4 = "float4_e2m1fn_x2"


def describe(named_tensors: Mapping[str, Any], *, gpus: bool = False) -> tuple[list[Described], list[Any]]:
    """Every tensor as the engine takes it, and the objects that keep those bytes where they are.

    Tensors that are not contiguous, not in memory that can be read or not of this machine's byte order are copied; what has
    no plain bytes is refused by name.

    Args:
        gpus: tensors on GPUs stay there, complete.
    """
    described: list[Described] = []
    keep_alive: list[Any] = []
    on_gpus: set[Any] = set()
    for name, tensor in named_tensors.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a tensor's name is {name!r}, which is no text", "invalid argument")
        if hasattr(tensor, "data_ptr"):
            entry, kept = _torch_tensor(name, tensor, gpus)
            if kept.device.type == "cuda":
                on_gpus.add(kept.device)
        elif hasattr(tensor, "__array_interface__"):
            entry, kept = _numpy_array(name, tensor)
        else:
            raise _refused(name, f"is a {type(tensor).__name__}, neither a torch tensor nor a numpy array")
        described.append(entry)
        keep_alive.append(kept)
    for device in on_gpus:
        torch_if_loaded().cuda.synchronize(device)
    return described, keep_alive


def _refused(name: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f'tensor "{name}" {why}', "invalid argument")


def _torch_tensor(name: str, tensor: Any, gpus: bool) -> tuple[Described, Any]:
    if hasattr(tensor, "full_tensor"):
        raise _refused(name, "is sharded: register what full_tensor() gives, called in the same order on all ranks")
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided" or getattr(tensor, "is_quantized", False):
        raise _refused(name, "is sparse or quantised by torch and has no plain bytes: register its dense parts")
    if tensor.device.type == "meta":
        raise _refused(name, "is on the meta device and has no bytes")
    plain = tensor.detach()
    for resolve in ("resolve_conj", "resolve_neg"):
        plain = getattr(plain, resolve)() if hasattr(plain, resolve) else plain
    plain = (plain if gpus and plain.device.type == "cuda" else plain.cpu()).contiguous()
    dtype = str(plain.dtype).removeprefix("torch.")
    shape = list(plain.shape)
    if dtype == _TORCH_F4:
        if not shape:
            raise _refused(name, f"is a scalar of dtype {dtype}")
        shape[-1] *= 2  # torch counts pairs, safetensors files single elements
    return (name, dtype, shape, plain.data_ptr(), plain.numel() * plain.element_size()), plain


def _numpy_array(name: str, array: Any) -> tuple[Described, Any]:
    if array.dtype.hasobject or array.dtype.fields is not None:
        raise _refused(name, f"has dtype {array.dtype}, which has no plain bytes")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    address = array.__array_interface__["data"][0]
    return (name, array.dtype.name, list(array.shape), address, array.nbytes), array


def torch_if_loaded() -> Any:
    """The module torch where somebody has imported it, else None."""
    return sys.modules.get("torch")


def view(dtype: str, shape: tuple[int, ...], ring_bytes: Any) -> Any:
    """The tensor that lies in `ring_bytes` on the host: torch's where torch is loaded, else a read-only numpy array."""
    torch = torch_if_loaded()
    if torch is not None:
        if not hasattr(torch, dtype):
            raise TypeError(f"dtype {dtype} is not known to torch {torch.__version__}; update torch")
        if len(ring_bytes) == 0:
            return torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")  # whatever the default device is
        return torch.frombuffer(ring_bytes, dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)
    import numpy

    if len(ring_bytes) == 0:
        return numpy.empty(shape, _numpy_dtype(dtype))
    array = numpy.frombuffer(ring_bytes, dtype=numpy.uint8).view(_numpy_dtype(dtype)).reshape(shape)
    array.flags.writeable = False
    return array


def cuda_view(dtype: str, shape: tuple[int, ...], ring_bytes: Any, device_id: int | None) -> Any:
    """The torch tensor that lies in `ring_bytes` on the GPU."""
    torch = torch_if_loaded()
    if torch is None:
        raise RuntimeError("a ring on a GPU is read by torch, which is not loaded in this process: import it first")
    if len(ring_bytes) == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=_cuda_device(device_id))
    raw = torch.as_tensor(_CudaArray(ring_bytes), device=_cuda_device(device_id))
    return raw.view(getattr(torch, dtype)).view(shape)


def _cuda_device(device_id: int | None) -> str:
    return "cuda" if device_id is None else f"cuda:{device_id}"


class _CudaArray:
    """What torch takes for an array on a GPU; torch keeps it as long as the tensor lives."""

    def __init__(self, ring_bytes: Any):
        self._ring_bytes = ring_bytes
        self.__cuda_array_interface__ = {
            "shape": (len(ring_bytes),),
            "typestr": "|u1",
            "data": (ring_bytes.address, False),
            "version": 3,
        }


def _numpy_dtype(dtype: str) -> Any:
    import numpy

    try:
        return numpy.dtype(dtype)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, dtype))
    except (ImportError, AttributeError):
        raise TypeError(f"dtype {dtype} is not known to numpy: import torch, or install ml_dtypes") from None

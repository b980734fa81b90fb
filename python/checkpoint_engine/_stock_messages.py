"""The pickles of the Python package checkpoint-engine 0.4: read without running anything that they name.

Every global of a pickle becomes an inert stand-in, and only these are known; what they are called with is kept, looked at, and
then built here. Whatever else a pickle holds is refused.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple


class StockMessageError(RuntimeError):
    """A message is none of those that the field's package sends."""


def _refuse_state(stand_in: Any, state: Any) -> None:
    raise StockMessageError(f"the rank's message gives a state to {stand_in.name}, which no message of this wire does")


class _Called(NamedTuple):
    """A stand-in, called with these arguments."""

    name: str
    arguments: tuple[Any, ...]

    __setstate__ = _refuse_state


class _Global:
    """A global by its name; calling it calls nothing."""

    __slots__ = ("name",)
    __setstate__ = _refuse_state

    def __init__(self, name: str):
        self.name = name

    def __call__(self, *arguments: Any) -> _Called | _Partial:
        return _Partial(arguments) if self.name == "functools.partial" else _Called(self.name, arguments)


class _Partial:
    """A functools.partial as pickle builds it: made with its function, then given its state."""

    def __init__(self, arguments: tuple[Any, ...]):
        self.state: Any = (arguments[0] if arguments else None, (), {}, None)

    def __setstate__(self, state: Any) -> None:
        self.state = state


_REBUILD_CUDA = "torch.multiprocessing.reductions.rebuild_cuda_tensor"
_FROM_FILE = "torch.from_file"
_STORAGES = {"torch.storage.TypedStorage", "torch.storage.UntypedStorage"}
_GLOBALS = {_REBUILD_CUDA, _FROM_FILE, "torch.Tensor", "torch.Size", "functools.partial"} | _STORAGES
_ERRORS = {kind.__name__: kind for kind in
           (Exception, RuntimeError, ValueError, TypeError, AssertionError, KeyError, OSError)}
_DTYPES = {
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float4_e2m1fn_x2",
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Global:
        full = f"{module}.{name}"
        if full in _GLOBALS or (module == "torch" and name in _DTYPES) or (module == "builtins" and name in _ERRORS):
            return _Global(full)
        raise StockMessageError(f"the rank's message names {full}, which no message of this wire does; it was not run")

    def persistent_load(self, pid: Any) -> Any:
        raise StockMessageError("the rank's message has a persistent id, which no message of this wire has")


@dataclass(frozen=True)
class CudaBuffer:
    """The arguments of torch.multiprocessing.reductions.rebuild_cuda_tensor, checked, and the device index left out."""

    bytes: int
    storage: str  # "TypedStorage" or "UntypedStorage"
    handle: bytes
    storage_bytes: int
    storage_offset: int
    counter_handle: bytes
    counter_offset: int
    event_handle: bytes
    event_sync_required: bool


@dataclass(frozen=True)
class FileBuffer:
    """A file that rank and worker map."""

    path: str
    bytes: int


@dataclass(frozen=True)
class StockTensor:
    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    offset: int


def read(message: bytes) -> CudaBuffer | FileBuffer | list[StockTensor] | Exception | None:
    """The message's content; StockMessageError for any other."""
    try:
        return _content(_Reader(io.BytesIO(message)).load())
    except StockMessageError:
        raise
    except Exception as error:
        raise StockMessageError(f"the rank's message is no pickle of this wire: {error}") from None


def _content(content: Any) -> CudaBuffer | FileBuffer | list[StockTensor] | Exception | None:
    if content is None:
        return None
    if isinstance(content, list):
        return [_tensor(entry) for entry in content]
    if isinstance(content, _Called):
        return _error(content)
    if type(content) is tuple and len(content) == 2:
        return _buffer(*content)
    raise _unexpected(content)


def _unexpected(content: Any) -> StockMessageError:
    return StockMessageError(f"the rank's message holds {type(content).__name__}, which no message of this wire does")


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise StockMessageError(f"the rank's message has {what}")


def _natural(value: Any) -> bool:
    return type(value) is int and value >= 0


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, _Called) and value.name == "torch.Size" and len(value.arguments) == 1:
        value = value.arguments[0]
    _need(type(value) in (tuple, list) and not isinstance(value, _Called), "a shape that is no tuple")
    _need(all(_natural(size) for size in value), f"the shape {value!r}")
    return tuple(value)


def _dtype(value: Any) -> str:
    _need(isinstance(value, _Global) and value.name.removeprefix("torch.") in _DTYPES, "a dtype that is none of torch's")
    return value.name.removeprefix("torch.")


def _tensor(entry: Any) -> StockTensor:
    _need(type(entry) is dict and {"name", "dtype", "shape", "offset"} <= entry.keys(), "a bucket entry without its fields")
    _need(type(entry["name"]) is str, "a tensor without a name")
    _need(_natural(entry["offset"]), f"the offset {entry['offset']!r}")
    return StockTensor(entry["name"], _dtype(entry["dtype"]), _shape(entry["shape"]), entry["offset"])


def _error(called: _Called) -> Exception:
    module, _, name = called.name.rpartition(".")
    _need(module == "builtins", f"a call of {called.name}")
    text = ", ".join(str(argument) for argument in called.arguments if isinstance(argument, str | int))
    return _ERRORS[name](text)


def _buffer(function: Any, arguments: Any) -> CudaBuffer | FileBuffer:
    _need(type(arguments) is tuple, "a buffer without arguments")
    if isinstance(function, _Global) and function.name == _REBUILD_CUDA:
        return _cuda_buffer(arguments)
    if isinstance(function, _Partial):
        return _file_buffer(function, arguments)
    raise _unexpected(function)


def _file_buffer(function: _Partial, arguments: tuple[Any, ...]) -> FileBuffer:
    state = function.state
    _need(type(state) is tuple and len(state) == 4, "a partial without its state")
    of, bound, keywords, _ = state
    _need(isinstance(of, _Global) and of.name == _FROM_FILE and not bound, "a partial of something else than from_file")
    _need(type(keywords) is dict and keywords.keys() == {"dtype"} and _dtype(keywords["dtype"]) == "uint8",
          "a buffer that is not of bytes")
    _need(len(arguments) == 3 and type(arguments[0]) is str and arguments[1] is True and _natural(arguments[2]),
          "a buffer that is no shared file")
    return FileBuffer(arguments[0], arguments[2])


def _cuda_buffer(arguments: tuple[Any, ...]) -> CudaBuffer:
    _need(len(arguments) == 15, f"a GPU buffer of {len(arguments)} arguments; 15 are known")
    (tensor, size, stride, offset, storage, dtype, _, handle, storage_bytes, storage_offset, needs_gradient, counter,
     counter_offset, event, event_sync) = arguments
    _need(isinstance(tensor, _Global) and tensor.name == "torch.Tensor", "a GPU buffer that is no plain tensor")
    shape = _shape(size)
    _need(len(shape) == 1 and _shape(stride) == (1,) and offset == 0, "a GPU buffer that is not one run of bytes")
    _need(_dtype(dtype) == "uint8" and needs_gradient is False, "a GPU buffer that is not of bytes")
    _need(isinstance(storage, _Global) and storage.name in _STORAGES, "a GPU buffer without a storage")
    _need(all(type(value) is bytes for value in (handle, counter, event)), "a GPU buffer without its handles")
    _need(all(_natural(value) for value in (storage_bytes, storage_offset, counter_offset)), "a GPU buffer without sizes")
    _need(type(event_sync) is bool, "a GPU buffer without its event")
    return CudaBuffer(shape[0], storage.name.rpartition(".")[2], handle, storage_bytes, storage_offset, counter,
                      counter_offset, event, event_sync)

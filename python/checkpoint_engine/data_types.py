"""What a rank holds, as Python objects that can be pickled; the field's names for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _core
from .tensors import torch_if_loaded

_ALIGNMENT = 256


@dataclass
class ParameterMeta:
    """A tensor: torch's dtype where torch is loaded, else its name ("torch.bfloat16")."""

    name: str
    dtype: Any
    shape: Any
    aligned_size: int  # bytes, up to the next multiple of 256


class BucketRange(NamedTuple):
    """A range of bytes in the buffer number `idx`."""

    idx: int
    offset: int
    size: int


@dataclass
class H2DBucket:
    size: int
    ranges: list[BucketRange]
    items: list[ParameterMeta]


@dataclass
class MemoryBufferMetas:
    """Tensors that lie one after the other in one buffer of `size` bytes."""

    metas: list[ParameterMeta]
    ptr: int
    size: int


@dataclass
class MemoryBuffer:
    buffer: Any
    size: int
    metas: list[ParameterMeta]
    manually_pinned: bool = False


@dataclass
class MemoryBufferMetaList:
    """What one rank holds."""

    p2p_store_addr: str | None
    memory_buffer_metas_list: list[MemoryBufferMetas]
    rdma_device: str


@dataclass
class DataToGather(MemoryBufferMetaList):
    host_ip: str = ""
    device_uuid: str = ""


class Metas(dict[int, MemoryBufferMetaList]):
    """What the ranks hold, by rank; ranks without tensors are left out.

    Attributes:
        exported: the engine's own JSON, which has more than the objects: digests, places, transport descriptors.
    """

    exported: str

    @classmethod
    def from_json(cls, text: str) -> Metas:
        metas = cls()
        metas.exported = text
        content = json.loads(text)
        layouts = [[_parameter(tensor) for tensor in layout["tensors"]] for layout in content["layouts"]]
        for rank, entry in enumerate(content["ranks"]):
            tensors = layouts[entry["layout"]]
            if tensors:
                size = sum(tensor.aligned_size for tensor in tensors)
                metas[rank] = MemoryBufferMetaList(None, [MemoryBufferMetas(tensors, 0, size)], "")
        return metas


def _parameter(tensor: dict[str, Any]) -> ParameterMeta:
    dtype, shape = _core.torch_dtype_and_shape(tensor["dtype"], tensor["shape"])
    size = -(-_core.tensor_bytes(tensor["dtype"], tensor["shape"]) // _ALIGNMENT) * _ALIGNMENT
    torch = torch_if_loaded()
    if torch is None:
        return ParameterMeta(tensor["name"], f"torch.{dtype}", tuple(shape), size)
    return ParameterMeta(tensor["name"], getattr(torch, dtype, f"torch.{dtype}"), torch.Size(shape), size)

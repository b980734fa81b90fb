"""What a rank holds, as Python objects that can be pickled; the field's names for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _core
from .tensors import torch_if_loaded


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

    The member `p2p_store_addr` of each is to be passed on as it is: the engine keeps there what has no other place, such as
    digests. So a plain dict of these objects is as good.

    Attributes:
        exported: what they were when the engine gave them, as its own JSON; "" for those that it did not give.
    """

    exported: str = ""

    @classmethod
    def from_json(cls, text: str) -> Metas:
        metas = cls()
        metas.exported = text
        for rank, entry in json.loads(_core.field_metas(text)).items():
            metas[int(rank)] = MemoryBufferMetaList(
                entry["p2p_store_addr"],
                [_buffer(buffer) for buffer in entry["memory_buffer_metas_list"]],
                entry["rdma_device"],
            )
        return metas


def metas_json(metas: Mapping[int, Any]) -> str:
    """What load_metas of the engine takes, of metas as they are now; the values are MemoryBufferMetaList, or what JSON makes of one."""
    text = json.dumps(metas, default=_plain)
    if isinstance(metas, Metas) and metas.exported:
        # It says more than these objects can.
        if json.loads(text) == json.loads(_core.field_metas(metas.exported)):
            return metas.exported
    return text


def _plain(value: Any) -> Any:
    text = str(value)
    return text if text.startswith("torch.") else vars(value)


def _buffer(entry: dict[str, Any]) -> MemoryBufferMetas:
    return MemoryBufferMetas([_parameter(**meta) for meta in entry["metas"]], entry["ptr"], entry["size"])


def _parameter(name: str, dtype: str, shape: list[int], aligned_size: int) -> ParameterMeta:
    torch = torch_if_loaded()
    if torch is None:
        return ParameterMeta(name, dtype, tuple(shape), aligned_size)
    return ParameterMeta(name, getattr(torch, dtype.removeprefix("torch."), dtype), torch.Size(shape), aligned_size)

"""The receiving side: how an inference engine's worker takes new weights."""

from __future__ import annotations

from typing import Any, TypedDict

from ._receiver import update_weights_from_ipc
from .vllm_extension import VllmColocateWorkerExtension

__all__ = ["FlattenedTensorMetadata", "VllmColocateWorkerExtension", "update_weights_from_ipc"]


class FlattenedTensorMetadata(TypedDict):
    """Where a tensor lies in the buffer of the stock wire."""

    name: str
    shape: Any
    dtype: Any
    offset: int

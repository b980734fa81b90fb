"""Buffers that are lent to an engine while its loader runs."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import Any

from .tensors import torch_if_loaded

Weights = list[tuple[str, Any]]


def wait_for_reads(device: Any, current_stream_only: bool) -> None:
    """Returns when the work that reads lent buffers on a GPU is done: that of this thread's current stream, or all of the
    device's.
    """
    cuda = torch_if_loaded().cuda
    if current_stream_only:
        cuda.current_stream(device).synchronize()
    else:
        cuda.synchronize(device)


def forget_locals(error: BaseException | None) -> None:
    """The frames that an error went through hold the lent tensors, and copies of them, for as long as somebody holds the error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def refuse_kept(lent: list[tuple[str, weakref.ref]]) -> None:
    """Raises when a buffer that was lent to the engine is still in use: its content is about to be replaced."""
    if any(buffer() is not None for _, buffer in lent):
        gc.collect()  # cycles that nobody can reach keep nothing that matters
    kept = [name for name, buffer in lent if buffer() is not None]
    if kept:
        raise RuntimeError(
            f'the engine keeps {len(kept)} of the tensors that it was lent, "{kept[0]}" first; '
            "run() must copy what is needed after its return (tensor.clone())"
        )

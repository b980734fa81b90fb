"""Buffers that are lent to an engine while its loader runs."""

from __future__ import annotations

import gc
import weakref


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

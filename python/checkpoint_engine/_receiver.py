"""One update of an engine's worker, over the wire that its rank speaks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from . import _core, _log, _stock_worker
from ._lent import Weights, forget_locals, refuse_kept, wait_for_reads
from .tensors import cuda_view, view


def update_weights_from_ipc(
    zmq_ctx: Any,
    zmq_handle: str,
    device_id: int | None,
    *,
    run: Callable[[Weights], object],
    post_hook: Callable[[], object] | None = None,
    timeout: float = 600.0,
    verify: bool = True,
    secret: str | None = None,
    current_stream_only: bool = False,
) -> None:
    """Receives one update from the rank at `zmq_handle`.

    Returns when all workers of the update have loaded everything (a rank of ours) or when this rank says so (a rank of the
    Python package checkpoint-engine 0.4), and raises when it failed anywhere: the weights are incomplete then.

    Args:
        zmq_ctx: a zmq.Context for a rank of the Python package; ours does not use it.
        zmq_handle: the address that the rank gave for this worker's device.
        device_id: torch's index of this worker's GPU in this process; None on the CPU.
        run: called with [(name, tensor)], on this thread, bucket by bucket. The tensors lie in memory shared with the rank,
            on the GPU or in host memory, and are valid until it returns: what is kept must be a copy. A tensor that is kept
            all the same fails the update, by name. They are torch's where torch is loaded, else numpy's. An exception
            fails the update on every rank, and is raised here.
        post_hook: called when everything has been loaded and the memory is released.
        timeout: seconds without a message from the rank.
        verify: compare digests before loading, if the rank has not forbidden it. Our ranks only.
        secret: the job's, where it has one; None: the environment variable CHECKPOINT_ENGINE_SECRET. Our ranks only.
        current_stream_only: `run` reads the tensors by work of this thread's current CUDA stream alone, as vLLM's loaders do.
            Then only that stream is waited for after each bucket; else the whole device, since other streams are unknown.
    """
    if not _core.is_native_address(zmq_handle):
        _stock_worker.update_weights(
            zmq_ctx, zmq_handle, device_id, run=run, post_hook=post_hook, timeout=timeout, current_stream_only=current_stream_only
        )
        return
    if secret is None:
        secret = os.environ.get("CHECKPOINT_ENGINE_SECRET", "")
    loader = BucketLoader(device_id, run, post_hook, current_stream_only)
    report = _core.receive(zmq_handle, loader.load, loader.finish, timeout, verify, secret)
    _log.logger.info("%d tensors (%d bytes) loaded, %d verified", report["tensors"], report["bytes"],
                     report["verified_tensors"])


class BucketLoader:
    """Gives the tensors of a bucket to `run`, and sees to it that none of them is kept."""

    def __init__(self, device_id: int | None, run: Callable[[Weights], object],
                 post_hook: Callable[[], object] | None, current_stream_only: bool = False):
        self._device_id = device_id
        self._current_stream_only = current_stream_only
        self._run = run
        self._post_hook = post_hook

    def load(self, entries: list[tuple[str, str, tuple[int, ...], _core.RingBytes]]) -> None:
        lent = [(name, weakref.ref(ring_bytes)) for name, _, _, ring_bytes in entries]
        on_gpu = any(ring_bytes.on_device for *_, ring_bytes in entries)
        weights = [
            (name, cuda_view(dtype, shape, ring_bytes, self._device_id) if on_gpu else view(dtype, shape, ring_bytes))
            for name, dtype, shape, ring_bytes in entries
        ]
        entries.clear()
        try:
            self._run(weights)
            if on_gpu:
                wait_for_reads(self._device_id, self._current_stream_only)
        except BaseException as error:
            forget_locals(error)
            raise
        finally:
            weights.clear()
        refuse_kept(lent)

    def finish(self) -> None:
        if self._post_hook is not None:
            self._post_hook()

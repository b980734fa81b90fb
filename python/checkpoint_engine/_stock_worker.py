"""The worker's side of the stock wire, for a rank of the Python package checkpoint-engine 0.4: docs/wire-stock.md."""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import os
import stat
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from . import _core
from ._lent import Weights, forget_locals, refuse_kept, wait_for_reads
from ._stock_messages import CudaBuffer, FileBuffer, StockMessageError, StockTensor, read
from .errors import DeadlineExceededError
from .tensors import torch_if_loaded, view


# Of a rank that has been told of an error: its ranks agree on it when all have loaded.
_PATIENCE_AFTER_REFUSAL = 60.0


def update_weights(
    zmq_ctx: Any,
    address: str,
    device_id: int | None,
    *,
    run: Callable[[Weights], object],
    post_hook: Callable[[], object] | None,
    timeout: float,
    current_stream_only: bool,
) -> None:
    """One update; see worker.update_weights_from_ipc."""
    rank = _Rank(zmq_ctx, address, timeout)
    try:
        _Session(rank, device_id, run, post_hook, current_stream_only).run()
    finally:
        rank.close()


class _Rank:
    """The rank at the other end: sends pickles, gets raw bytes."""

    def __init__(self, zmq_ctx: Any, address: str, timeout: float):
        import zmq

        self._address = address
        self._timeout = timeout
        self._socket = zmq_ctx.socket(zmq.REP)
        self._socket.connect(address)
        self._poll_in = zmq.POLLIN
        self._owes_answer = False

    def receive(self) -> Any:
        """The content of the next message, or StockMessageError. Every message is to be answered, but for an exception."""
        message = self._receive_raw()
        self._owes_answer = True
        content = read(message)
        if isinstance(content, Exception):
            self._owes_answer = False
        return content

    def accept(self) -> None:
        self._answer(b"")

    def refuse(self, error: BaseException) -> None:
        """Answers with the error, where an answer is due."""
        if self._owes_answer:
            self._timeout = min(self._timeout, _PATIENCE_AFTER_REFUSAL)
            self._answer(_traceback_of(error))

    def _answer(self, answer: bytes) -> None:
        self._owes_answer = False
        self._socket.send(answer)

    def _receive_raw(self) -> bytes:
        end = time.monotonic() + self._timeout
        # Python handles signals between the steps; pyzmq does so within them only for the main thread.
        while not self._socket.poll(timeout=100, flags=self._poll_in):
            if time.monotonic() > end:
                raise DeadlineExceededError(
                    f"no message from the rank at {self._address} for {self._timeout} s", "deadline exceeded"
                )
        return self._socket.recv()

    def close(self) -> None:
        self._socket.close(linger=2000)


class _Session:
    def __init__(self, rank: _Rank, device_id: int | None, run: Callable, post_hook: Callable | None,
                 current_stream_only: bool):
        self._rank = rank
        self._current_stream_only = current_stream_only
        self._device_id = device_id
        self._run = run
        self._post_hook = post_hook
        self._buffer: _CudaMapping | _FileMapping | None = None
        self._load_error: Exception | None = None

    def run(self) -> None:
        try:
            self._open()
            while (bucket := self._next()) is not None:
                self._load(bucket)
            self._release()
            while (bucket := self._next()) is not None:
                self._load(bucket)
            if self._load_error is not None:
                # This rank did not look at the answer to its last bucket (0.4.2): only the engine's own answer will tell.
                raise self._load_error
            if self._post_hook is not None:
                self._post_hook()
            self._rank.accept()
        except BaseException as error:
            # The rank waits for what it is owed without a deadline, and the others of its job for it (0.4.2).
            self._rank.refuse(error)
            raise
        finally:
            self._buffer = None

    def _open(self) -> None:
        try:
            handle = self._rank.receive()
            if isinstance(handle, FileBuffer):
                self._buffer = _FileMapping(handle)
            elif isinstance(handle, CudaBuffer):
                self._buffer = _CudaMapping(handle, self._device_id, self._current_stream_only)
            elif not isinstance(handle, Exception):
                raise StockMessageError("the rank's first message is no buffer")
        except DeadlineExceededError:
            raise
        except Exception as error:  # the rank answers as to a bucket that cannot be loaded
            self._fail(error)
            return
        if isinstance(handle, Exception):
            raise handle
        self._rank.accept()

    def _next(self) -> list[StockTensor] | None:
        """The next bucket, or None. What cannot be read is refused as a bucket that cannot be loaded: the rank waits for an
        answer, without a deadline (0.4.2).
        """
        while True:
            try:
                message = self._rank.receive()
                if message is None or isinstance(message, list):
                    return message
                if not isinstance(message, Exception):
                    raise StockMessageError("the rank sent a second buffer")
            except StockMessageError as error:
                self._fail(error)
                continue
            except DeadlineExceededError:
                if self._load_error is not None:
                    raise self._load_error from None
                raise
            if self._load_error is not None:
                raise self._load_error from message  # what the rank says is that some worker failed
            raise message

    def _load(self, bucket: list[StockTensor]) -> None:
        try:
            if self._buffer is None:
                raise StockMessageError("the rank sent a bucket before its buffer, or after it had released it")
            self._buffer.lend(bucket, self._run)
        except Exception as error:  # the rank answers with an exception to all workers, which _next raises; or with None
            self._fail(error)
        else:
            self._rank.accept()

    def _fail(self, error: Exception) -> None:
        self._rank.refuse(error)
        forget_locals(error)
        self._load_error = self._load_error or error

    def _release(self) -> None:
        buffer, self._buffer = self._buffer, None
        try:
            if buffer is not None:
                buffer.close()
        except Exception as error:  # BufferError: something of it is kept, which a load error may have said already
            self._fail(error)
        else:
            self._rank.accept()


def _traceback_of(error: BaseException) -> bytes:
    """Never raises, whatever the engine's exceptions do."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        text = _core.type_and_text_of(error)
    return text.encode("utf-8", "backslashreplace")


def _checked_bytes(tensor: StockTensor, buffer_bytes: int) -> int:
    """The tensor's bytes, when it lies in the buffer."""
    itemsize = _core.torch_itemsize(tensor.dtype)
    size = math.prod(tensor.shape) * itemsize
    if tensor.offset + size > buffer_bytes or tensor.offset % itemsize != 0:
        raise StockMessageError(
            f'tensor "{tensor.name}" of {size} bytes at offset {tensor.offset} does not fit the buffer of {buffer_bytes} bytes, '
            f"or is not aligned to its elements of {itemsize}"
        )
    return size


class _FileMapping:
    """A buffer in host memory. Nothing that the engine keeps may lie in it: that is an error, by name."""

    def __init__(self, handle: FileBuffer):
        descriptor = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size < handle.bytes:
                raise StockMessageError(f"{handle.path} is no buffer of {handle.bytes} bytes of this user")
            self._memory = mmap.mmap(descriptor, handle.bytes)
        finally:
            os.close(descriptor)
        self._bytes = handle.bytes

    def lend(self, bucket: list[StockTensor], run: Callable) -> None:
        lent, weights = [], []
        for tensor in bucket:
            size = _checked_bytes(tensor, self._bytes)
            piece = (ctypes.c_ubyte * size).from_buffer(self._memory, tensor.offset) if size else b""
            if size:
                lent.append((tensor.name, weakref.ref(piece)))
            weights.append((tensor.name, view(tensor.dtype, tensor.shape, piece)))
            del piece
        run(weights)
        weights.clear()
        refuse_kept(lent)

    def close(self) -> None:
        gc.collect()
        self._memory.close()


class _CudaMapping:
    """A buffer on the GPU, opened by torch."""

    def __init__(self, handle: CudaBuffer, device_id: int | None, current_stream_only: bool):
        torch = torch_if_loaded()
        if torch is None:
            raise RuntimeError("a buffer on a GPU is opened by torch, which is not loaded in this process: import it first")
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        self._torch = torch
        self._current_stream_only = current_stream_only
        self._buffer = rebuild_cuda_tensor(
            torch.Tensor, (handle.bytes,), (1,), 0, getattr(torch.storage, handle.storage), torch.uint8,
            torch.cuda.current_device() if device_id is None else device_id, handle.handle, handle.storage_bytes,
            handle.storage_offset, False, handle.counter_handle, handle.counter_offset, handle.event_handle,
            handle.event_sync_required,
        )

    def lend(self, bucket: list[StockTensor], run: Callable) -> None:
        weights = []
        for tensor in bucket:
            size = _checked_bytes(tensor, self._buffer.numel())
            piece = self._buffer[tensor.offset : tensor.offset + size]
            weights.append((tensor.name, piece.view(getattr(self._torch, tensor.dtype)).view(tensor.shape)))
        run(weights)
        wait_for_reads(self._buffer.device, self._current_stream_only)

    def close(self) -> None:
        self._buffer = None
        gc.collect()
        self._torch.cuda.ipc_collect()  # everything that read it is done: that was waited for

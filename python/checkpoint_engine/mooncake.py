"""Ranks read each other's memory by Mooncake instead of UCX: ParameterServer(transfer_engine=MooncakeTransfer())."""

from __future__ import annotations

import ctypes
import mmap
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import zmq

from ._log import logger
from .device_utils import DeviceManager, get_ip
from .p2p_store import start_engine

__all__ = ["MooncakeTransfer"]

Piece = tuple[int, int, int]
"""Address at the owner, address here, bytes."""

_BOUNCE_BYTES = 4 << 20
_PATIENCE = 0.05  # seconds in which a cancelled read is noticed
_PROBE_SECONDS = 1.0


class _Bounce:
    """Registered memory that Mooncake writes to. What is read is copied from it, so that a read that is given up never
    writes to memory of which somebody else has taken possession."""

    def __init__(self, engine: Any):
        self.memory = mmap.mmap(-1, _BOUNCE_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        code = engine.register_memory(self.address, _BOUNCE_BYTES)
        if code != 0:
            raise MemoryError(f"Mooncake cannot register {_BOUNCE_BYTES} bytes: {code}; is `ulimit -l` large enough?")


class MooncakeTransfer:
    """Mooncake's transfer engine for a ParameterServer, one for each.

    Messages between ranks go over ZeroMQ beside it, since Mooncake has none.

    Args:
        host: the address under which others reach this rank; None: get_ip().
        protocol: "rdma", "efa" or "tcp"; None: what this host has, "tcp" where MC_FORCE_TCP is set.
        device: RDMA device; None: this rank's by docs/p2p.md.
        local_rank, local_ranks: which of the host's devices are this rank's.

    Raises ImportError where Mooncake is not installed.
    """

    def __init__(
        self,
        host: str | None = None,
        protocol: str | None = None,
        device: str | None = None,
        *,
        local_rank: int = 0,
        local_ranks: int = 1,
    ):
        manager = DeviceManager()
        self._host = host or get_ip()
        protocol = protocol or manager.transfer_engine_protocol
        if device is None:
            device = "" if protocol == "tcp" else manager.rdma_device(local_rank, local_ranks)
        self._engine = start_engine(self._host, protocol, device)
        self._threads = ThreadPoolExecutor(thread_name_prefix="mooncake")
        self._lock = threading.Lock()
        self._bounces: list[_Bounce] = []  # guarded by _lock: those that nobody uses
        self._receiver: Callable[[bytes], object] | None = None  # guarded by _receiving
        self._receiving = threading.Lock()
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}  # guarded by _lock
        inbox = self._context.socket(zmq.PULL)
        inbox.setsockopt(zmq.IPV6, 1)
        port = inbox.bind_to_random_port("tcp://*")
        self.address = f"{self._host} {self._engine.get_rpc_port()} {port}"
        threading.Thread(target=self._receive, args=(inbox,), name="mooncake-inbox", daemon=True).start()
        logger.info("Mooncake at %s port %d, %s %s", self._host, self._engine.get_rpc_port(), protocol, device)

    def register_memory(self, address: int, size: int) -> None:
        code = self._engine.register_memory(address, size)
        if code != 0:
            raise MemoryError(f"Mooncake cannot register {size} bytes: {code}; is `ulimit -l` large enough?")

    def deregister_memory(self, address: int) -> None:
        code = self._engine.unregister_memory(address)
        if code != 0:
            logger.warning("Mooncake cannot unregister memory: %d", code)

    def read(self, address: str, pieces: list[Piece], seconds: float, cancelled: Callable[[], bool]) -> None:
        """Raises ConnectionError (nobody is there), LookupError (no such memory), TimeoutError."""
        end = time.monotonic() + seconds
        host, port, _ = address.split()
        batch: list[Piece] = []
        room = _BOUNCE_BYTES
        for remote, local, size in pieces:
            while size > 0:
                part = min(size, room)
                batch.append((remote, local, part))
                remote, local, size, room = remote + part, local + part, size - part, room - part
                if room == 0:
                    self._read_batch(host, port, batch, end, cancelled)
                    batch, room = [], _BOUNCE_BYTES
        if batch:
            self._read_batch(host, port, batch, end, cancelled)

    def send(self, address: str, message: bytes) -> None:
        host, _, port = address.split()
        with self._lock:
            sender = self._sockets.get(address)
            if sender is None:
                sender = self._context.socket(zmq.PUSH)
                sender.setsockopt(zmq.LINGER, 0)
                sender.setsockopt(zmq.IPV6, 1)
                sender.setsockopt(zmq.SNDTIMEO, 0)
                sender.connect(f"tcp://{_bracketed(host)}:{port}")
                self._sockets[address] = sender
            try:
                sender.send(message)
            except zmq.Again:
                raise ConnectionError(f"{host} takes no messages") from None

    def set_receiver(self, receiver: Callable[[bytes], object] | None) -> None:
        with self._receiving:
            self._receiver = receiver

    def _receive(self, inbox: zmq.Socket[bytes]) -> None:
        while True:
            message = inbox.recv()
            with self._receiving:
                if self._receiver is not None:
                    self._receiver(message)

    def _read_batch(self, host: str, port: str, batch: list[Piece], end: float, cancelled: Callable[[], bool]) -> None:
        with self._lock:
            bounce = self._bounces.pop() if self._bounces else None
        bounce = bounce or _Bounce(self._engine)
        places, at = [], bounce.address
        for _, _, size in batch:
            places.append(at)
            at += size
        sizes = [size for _, _, size in batch]
        work = self._threads.submit(
            self._engine.batch_transfer_sync_read, f"{_bracketed(host)}:{port}", places, [piece[0] for piece in batch], sizes
        )
        try:
            code = self._outcome(work, host, end, cancelled)
        except BaseException:
            work.add_done_callback(lambda _: self._give_back(bounce))
            raise
        try:
            if code != 0:
                raise self._cause(host, port, code)
            for place, (_, local, size) in zip(places, batch, strict=True):
                ctypes.memmove(local, place, size)
        finally:
            self._give_back(bounce)

    def _outcome(self, work: Future[int], host: str, end: float, cancelled: Callable[[], bool]) -> int:
        while True:
            try:
                return work.result(min(_PATIENCE, max(0.0, end - time.monotonic())))
            except FutureTimeoutError:
                if cancelled():
                    raise InterruptedError("the read was given up") from None
                if time.monotonic() >= end:
                    raise TimeoutError(f"{host} has not answered in time") from None

    def _give_back(self, bounce: _Bounce) -> None:
        with self._lock:
            self._bounces.append(bounce)

    def _cause(self, host: str, port: str, code: int) -> Exception:
        """Mooncake says only that it failed: whether somebody is there makes the difference."""
        try:
            socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS).close()
        except OSError as error:
            return ConnectionError(f"Mooncake's port {port} at {host} does not answer ({error})")
        return LookupError(f"the memory is no longer registered with Mooncake at {host} ({code})")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

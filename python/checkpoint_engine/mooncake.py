"""Ranks read each other's memory by Mooncake instead of UCX: ParameterServer(transfer_engine=MooncakeTransfer())."""

from __future__ import annotations

import ctypes
import mmap
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import chain
from typing import Any

import zmq

from . import _core
from ._log import logger
from ._peer_calls import Callers, count_down
from ._peer_sockets import Senders, bracketed
from .device_utils import DeviceManager
from .p2p_store import start_engine

__all__ = ["MooncakeTransfer"]

Piece = tuple[int, int, int]
"""Address at the owner, address here, bytes."""

_BOUNCE_BYTES = 4 << 20
_SMALL_BOUNCE_BYTES = 4 << 10  # for doors
_PATIENCE = 0.05  # seconds in which a cancelled read is noticed
_PROBE_SECONDS = 1.0
_CLOSE_MILLISECONDS = 100  # in which the inbox notices that it is closed


class _Bounce:
    """Registered memory that Mooncake writes to. What is read is copied from it, so that a read that is given up never
    writes to memory of which somebody else has taken possession."""

    def __init__(self, engine: Any, size: int):
        self.size = size
        self.memory = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        code = engine.register_memory(self.address, size)
        if code != 0:
            raise MemoryError(f"Mooncake cannot register {size} bytes: {code}; is `ulimit -l` large enough?")


class MooncakeTransfer:
    """Mooncake's transfer engine for a ParameterServer, one for each, which closes it.

    Messages between ranks go over ZeroMQ beside it, since Mooncake has none.

    Args:
        host: address or interface under which others reach this rank; None: by docs/p2p.md.
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
        self._host = _core.own_address(host or "")
        protocol = protocol or manager.transfer_engine_protocol
        if device is None:
            device = "" if protocol == "tcp" else manager.rdma_device(local_rank, local_ranks)
        self._engine = start_engine(self._host, protocol, device)
        self._callers = Callers()
        self._lock = threading.Lock()
        self._bounces: dict[int, list[_Bounce]] = {}  # guarded by _lock: those that nobody uses, by size
        self._abandoned: Counter[str] = Counter()  # guarded by _lock: reads that nobody waits for, by peer
        self._receiver: Callable[[bytes], object] | None = None  # guarded by _receiving
        self._receiving = threading.Lock()
        self._senders = Senders()  # guarded by _lock
        self._closed = False  # guarded by _lock
        inbox, port = self._senders.inbox(self._host, _CLOSE_MILLISECONDS)
        self.address = f"{self._host} {self._engine.get_rpc_port()} {port}"
        self._inbox = threading.Thread(target=self._receive, args=(inbox,), name="mooncake-inbox", daemon=True)
        self._inbox.start()
        logger.info("Mooncake at %s port %d, %s %s", self._host, self._engine.get_rpc_port(), protocol, device)

    def close(self) -> None:
        """Ends its threads and sockets, and what is registered for reading. Again is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._senders.close()
            bounces, self._bounces = self._bounces, {}
        self._callers.close()
        self._inbox.join()
        self._senders.end()
        for bounce in chain.from_iterable(bounces.values()):
            self._engine.unregister_memory(bounce.address)

    def register_memory(self, address: int, size: int) -> None:
        code = self._engine.register_memory(address, size)
        if code != 0:
            raise MemoryError(f"Mooncake cannot register {size} bytes: {code}; is `ulimit -l` large enough?")

    def deregister_memory(self, address: int) -> None:
        code = self._engine.unregister_memory(address)
        if code != 0:
            logger.warning("Mooncake cannot unregister memory: %d", code)

    def read(self, address: str, pieces: list[Piece], seconds: float, cancelled: Callable[[], bool]) -> None:
        """Raises ConnectionError (nobody is there, which is all that is asked without pieces), LookupError (no such memory),
        TimeoutError."""
        end = time.monotonic() + seconds
        peer = _peer(address)
        if not pieces:
            self._find(peer)
        batch: list[Piece] = []
        room = _BOUNCE_BYTES
        for remote, local, size in pieces:
            while size > 0:
                part = min(size, room)
                batch.append((remote, local, part))
                remote, local, size, room = remote + part, local + part, size - part, room - part
                if room == 0:
                    self._read_batch(peer, batch, end, cancelled)
                    batch, room = [], _BOUNCE_BYTES
        if batch:
            self._read_batch(peer, batch, end, cancelled)

    def has_abandoned_reads(self, address: str) -> bool:
        with self._lock:
            return self._abandoned[_peer(address)] > 0

    def send(self, address: str, message: bytes) -> None:
        with self._lock:
            if self._closed:
                raise ConnectionError("this transfer engine is closed")
            self._senders.send(address, message)

    def set_receiver(self, receiver: Callable[[bytes], object] | None) -> None:
        with self._receiving:
            self._receiver = receiver

    def _receive(self, inbox: zmq.Socket[bytes]) -> None:
        while True:
            with self._lock:
                if self._closed:
                    break
                self._senders.close_idle()
            try:
                message = inbox.recv()
            except zmq.Again:
                continue
            with self._receiving:
                if self._receiver is not None:
                    self._receiver(message)
        inbox.close(linger=0)

    def _read_batch(self, peer: str, batch: list[Piece], end: float, cancelled: Callable[[], bool]) -> None:
        bounce = self._take_bounce(sum(piece[2] for piece in batch))
        places, at = [], bounce.address
        for _, _, size in batch:
            places.append(at)
            at += size
        remotes, sizes = [piece[0] for piece in batch], [piece[2] for piece in batch]
        try:
            work = self._callers.call(peer, lambda: int(self._engine.batch_transfer_sync_read(peer, places, remotes, sizes)))
        except BaseException:
            self._give_back(bounce)
            raise
        try:
            code = self._outcome(work, peer, end, cancelled)
        except BaseException:
            with self._lock:
                self._abandoned[peer] += 1
            work.add_done_callback(lambda _: self._end_abandoned(peer, bounce))
            raise
        try:
            if code != 0:
                raise self._cause(peer, code)
            for place, (_, local, size) in zip(places, batch, strict=True):
                ctypes.memmove(local, place, size)
        finally:
            self._give_back(bounce)

    def _outcome(self, work: Future[int], peer: str, end: float, cancelled: Callable[[], bool]) -> int:
        while True:
            try:
                return work.result(min(_PATIENCE, max(0.0, end - time.monotonic())))
            except FutureTimeoutError:
                if cancelled():
                    raise InterruptedError("the read was given up") from None
                if time.monotonic() >= end:
                    raise TimeoutError(f"{peer} has not answered in time") from None

    def _take_bounce(self, size: int) -> _Bounce:
        room = _SMALL_BOUNCE_BYTES if size <= _SMALL_BOUNCE_BYTES else _BOUNCE_BYTES
        with self._lock:
            if unused := self._bounces.get(room):
                return unused.pop()
        return _Bounce(self._engine, room)

    def _give_back(self, bounce: _Bounce) -> None:
        with self._lock:
            if not self._closed:
                self._bounces.setdefault(bounce.size, []).append(bounce)
                return
        self._engine.unregister_memory(bounce.address)

    def _end_abandoned(self, peer: str, bounce: _Bounce) -> None:
        with self._lock:
            count_down(self._abandoned, peer)
        self._give_back(bounce)

    @staticmethod
    def _find(peer: str) -> None:
        host, _, port = peer.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"Mooncake's port at {peer} does not answer ({error})") from None

    def _cause(self, peer: str, code: int) -> Exception:
        """Mooncake says only that it failed: whether somebody is there makes the difference."""
        try:
            self._find(peer)
        except ConnectionError as error:
            return error
        return LookupError(f"the memory is no longer registered with Mooncake at {peer}, or it does not answer ({code})")


def _peer(address: str) -> str:
    """As Mooncake names it: of "HOST PORT MESSAGES", as we name ourselves, or of the field's "HOST:PORT"."""
    if " " not in address:
        return address
    host, port, _ = address.split()
    return f"{bracketed(host)}:{port}"

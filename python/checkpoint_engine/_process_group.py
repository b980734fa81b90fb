"""Collectives over the engine's own control plane and transport: no torch, tensors in host memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from . import _core
from ._hosts import bind_address, host_port, master_host
from ._log import logger
from .errors import DeadlineExceededError, InvalidArgumentError

DEFAULT_TIMEOUT = timedelta(minutes=10)
# Under which the ranks learn of the hub in a store.
STORE_KEY = "checkpoint_engine/hub"


class Group:
    """Some ranks of the default group, in the order of their numbers."""

    def __init__(self, number: int, ranks: Sequence[int]):
        self.number = number
        self.ranks = sorted(ranks)

    def __repr__(self) -> str:
        return f"Group({self.number}, ranks={self.ranks})"


class DefaultGroup:
    """This process's seat among all ranks; see distributed for the functions."""

    def __init__(
        self, rank: int, world_size: int, hub: str, *, secret: str, timeout: timedelta, meeting: _core.Hub | None
    ):
        self.rank = rank
        self._timeout = timeout.total_seconds()
        self._meeting = meeting
        self._seat = _core.ProcessGroup(rank, world_size, hub, "process-group", secret, self._timeout)
        self._everybody = Group(0, range(world_size))
        self._groups = 0

    def leave(self) -> None:
        self._seat.leave()
        if self._meeting is not None:
            try:
                self._meeting.close(self._timeout)
            except DeadlineExceededError as error:
                logger.warning("the process group ends for ranks that have not left it: %s", error)

    def leave_group(self, group: Group) -> None:
        """It is a list of ranks and nothing more."""

    def new_group(self, ranks: Sequence[int] | None) -> Group:
        """All ranks make the same groups in the same order, so that they agree on their numbers."""
        members = self._everybody.ranks if ranks is None else sorted(ranks)
        if not members or len(set(members)) < len(members) or not set(members) <= set(self._everybody.ranks):
            raise InvalidArgumentError(
                f"{list(members)} are no ranks of a group of {len(self._everybody.ranks)}", "invalid argument"
            )
        self._groups += 1
        return Group(self._groups, members)

    def barrier(self, group: Group | None) -> None:
        group = group or self._everybody
        if self.rank in group.ranks:
            self._seat.barrier(f"group {group.number}", group.ranks, self._timeout)

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Group | None) -> None:
        group = group or self._everybody
        if self.rank not in group.ranks:
            return
        try:
            mine = json.dumps(obj).encode()
        except TypeError as error:
            raise InvalidArgumentError(
                f"without torch only what JSON holds is gathered: {error}", "invalid argument"
            ) from error
        gathered = self._seat.all_gather(f"group {group.number}", group.ranks, mine, self._timeout)
        object_list[:] = [json.loads(text) for text in gathered]

    def broadcast(self, tensor: Any, src: int, group: Group | None) -> None:
        group = group or self._everybody
        if self.rank not in group.ranks:
            return
        memory = HostMemory(tensor, filled=self.rank == src)
        self._send(memory, src, group)
        if self.rank != src:
            memory.give_back()

    def all_reduce(self, tensor: Any, op: Any, group: Group | None) -> None:
        """Every rank's tensor goes to all, which add them up in the same order: the results are equal bit by bit."""
        group = group or self._everybody
        if self.rank not in group.ranks:
            return
        mine = HostMemory(tensor, filled=True)
        reduce = _operation(op, mine.held)
        total = None
        for rank in group.ranks:
            theirs = HostMemory(_copy(mine.held), filled=True)
            self._send(theirs, rank, group)
            total = theirs.held if total is None else reduce(total, theirs.held)
        _assign(tensor, total)

    def _send(self, memory: HostMemory, src: int, group: Group) -> None:
        self._seat.broadcast(
            f"group {group.number}", group.ranks, src, memory.address, memory.bytes, memory.held, self._timeout
        )


class HostMemory:
    """The bytes of a tensor in host memory: its own, or a copy's where they do not lie in one piece there."""

    def __init__(self, tensor: Any, *, filled: bool):
        """Without `filled`, the tensor's content is about to be replaced."""
        self._tensor = tensor
        if hasattr(tensor, "data_ptr"):
            plain = tensor.detach()
            self.held = plain if plain.device.type == "cpu" and plain.is_contiguous() else plain.cpu().contiguous()
            self.address = self.held.data_ptr()
            self.bytes = self.held.numel() * self.held.element_size()
        elif hasattr(tensor, "__array_interface__"):
            writable = tensor.flags.writeable or filled
            if not writable:
                raise InvalidArgumentError(
                    "a read-only array cannot take what another rank broadcasts", "invalid argument"
                )
            self.held = tensor if tensor.flags.c_contiguous else tensor.copy(order="C")
            self.address = self.held.__array_interface__["data"][0]
            self.bytes = self.held.nbytes
        else:
            raise InvalidArgumentError(
                f"a {type(tensor).__name__} is neither a torch tensor nor a numpy array", "invalid argument"
            )

    def give_back(self) -> None:
        """Puts what has arrived into the tensor."""
        if self.held is not self._tensor and self.address != _address(self._tensor):
            _assign(self._tensor, self.held)


def join(
    rank: int,
    world_size: int,
    store: Any,
    *,
    timeout: timedelta = DEFAULT_TIMEOUT,
    secret: str | None = None,
    host: str | None = None,
    backend: str | None = None,
) -> DefaultGroup:
    """See distributed.init_process_group; torch's `backend` is nothing here."""
    if secret is None:
        secret = os.environ.get("CHECKPOINT_ENGINE_SECRET", "")
    host = "127.0.0.1" if world_size == 1 else master_host(host)
    meeting = None
    if rank == 0:
        meeting = _core.Hub(bind_address(host), world_size, secret)
        hub = host_port(host, meeting.port)
        if store is not None:
            store.set(STORE_KEY, hub)
    else:
        if store is None:
            raise InvalidArgumentError(
                "the ranks of a process group need a store, to learn where rank 0 is", "invalid argument"
            )
        found = store.get(STORE_KEY)
        hub = found.decode() if isinstance(found, bytes) else str(found)
    return DefaultGroup(rank, world_size, hub, secret=secret, timeout=timeout, meeting=meeting)


class ServerStore:
    """A store for join() over the ranks of a parameter server, which all join."""

    def __init__(self, server: _core.ParameterServer, timeout: timedelta):
        self._server = server
        self._timeout = timeout.total_seconds()

    def set(self, _: str, value: str) -> None:
        self._server.all_gather(value.encode(), self._timeout)

    def get(self, _: str) -> str:
        return self._server.all_gather(b"", self._timeout)[0].decode()


def _address(tensor: Any) -> int:
    return tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.__array_interface__["data"][0]


def _copy(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, "data_ptr") else tensor.copy()


def _assign(tensor: Any, value: Any) -> None:
    if hasattr(tensor, "data_ptr"):
        tensor.detach().copy_(value)
    else:
        tensor[...] = value


def _operation(op: Any, tensor: Any) -> Callable[[Any, Any], Any]:
    """torch's ReduceOp by name, or "sum", "product", "min", "max"; None: the sum."""
    name = "sum" if op is None else str(op).rpartition(".")[2].lower()
    if hasattr(tensor, "data_ptr"):
        module = sys.modules["torch"]
        operations = {"sum": module.add, "product": module.mul, "min": module.minimum, "max": module.maximum}
    else:
        import numpy

        operations = {"sum": numpy.add, "product": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum}
    if name not in operations:
        raise InvalidArgumentError(
            f"no reduction {op!r} without torch: use {', '.join(operations)}", "invalid argument"
        )
    return operations[name]

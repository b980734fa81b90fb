"""Collectives of torch in a group of its own: torch's default group is neither used nor made, and stays whose it is."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .errors import InvalidArgumentError

DEFAULT_TIMEOUT = timedelta(minutes=10)


class Group:
    """Some ranks of a separate group, in the order of their numbers; without `seat` this rank is not of them."""

    def __init__(self, ranks: list[int], seat: Any):
        self.ranks = ranks
        self.seat = seat
        self.is_over = False

    def __repr__(self) -> str:
        return f"Group(ranks={self.ranks})"

    def leave(self) -> None:
        left, self.seat, self.is_over = self.seat, None, True
        if hasattr(left, "shutdown"):
            left.shutdown()


class SeparateGroup:
    """This process's seat among all ranks; see distributed for the functions. Those of a group without this rank do nothing."""

    def __init__(self, rank: int, world_size: int, store: Any, *, backend: str, timeout: timedelta):
        import torch.distributed

        self.rank = rank
        self._torch = torch
        self._backend = backend
        self._timeout = timeout
        # Ranks that come again to the same store meet each other, and nothing of the time before.
        generation = (store.add("checkpoint_engine/joined", 1) - 1) // world_size
        self._store = torch.distributed.PrefixStore(f"checkpoint_engine/{generation}", store)
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._groups: list[Group] = []
        self._everybody = self._make(list(range(world_size)))

    def leave(self) -> None:
        for each in reversed(self._groups):
            each.leave()

    def leave_group(self, group: Group) -> None:
        group.leave()

    def new_group(self, ranks: Sequence[int] | None) -> Group:
        """All ranks make the same groups in the same order, so that they meet in the store."""
        members = sorted(ranks) if ranks else self._everybody.ranks
        if len(set(members)) < len(members) or not set(members) <= set(self._everybody.ranks):
            raise InvalidArgumentError(
                f"{members} are no ranks of a group of {len(self._everybody.ranks)}", "invalid argument"
            )
        return self._make(members)

    def barrier(self, group: Group | None) -> None:
        self.all_reduce(self._torch.zeros(1, device=self._device), None, group)

    def broadcast(self, tensor: Any, src: int, group: Group | None) -> None:
        group = self._open(group)
        if src not in group.ranks:
            raise InvalidArgumentError(f"rank {src} is not of {group}", "invalid argument")
        if group.seat is not None:
            sent = tensor.detach().contiguous()
            self._finish(group.seat.broadcast(sent, group.ranks.index(src)))
            _assign(tensor, sent)

    def all_reduce(self, tensor: Any, op: Any, group: Group | None) -> None:
        group = self._open(group)
        if group.seat is not None:
            reduced = tensor.detach().contiguous()
            self._finish(group.seat.allreduce(reduced, self._torch.distributed.ReduceOp.SUM if op is None else op))
            _assign(tensor, reduced)

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Group | None) -> None:
        group = self._open(group)
        if group.seat is None:
            return
        torch = self._torch
        mine = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8).to(self._device)
        sizes = self._gather(torch.tensor([mine.numel()], device=self._device), group)
        padded = torch.zeros(int(max(sizes)), dtype=torch.uint8, device=self._device)
        padded[: mine.numel()] = mine
        gathered = [each.cpu() for each in self._gather(padded, group)]
        object_list[:] = [
            pickle.loads(ctypes.string_at(each.data_ptr(), int(size)))
            for each, size in zip(gathered, sizes, strict=True)
        ]

    def _make(self, members: list[int]) -> Group:
        distributed = self._torch.distributed
        seat = None
        if self.rank in members:
            kind = distributed.ProcessGroupNCCL if self._backend == "nccl" else distributed.ProcessGroupGloo
            store = distributed.PrefixStore(str(len(self._groups)), self._store)
            seat = kind(store, members.index(self.rank), len(members), self._timeout)
        self._groups.append(Group(members, seat))
        return self._groups[-1]

    def _open(self, group: Group | None) -> Group:
        group = group or self._everybody
        if group.is_over:
            raise RuntimeError(f"{group} is destroyed already")
        return group

    def _gather(self, tensor: Any, group: Group) -> list[Any]:
        gathered = [self._torch.zeros_like(tensor) for _ in group.ranks]
        self._finish(group.seat.allgather([gathered], [tensor]))
        return gathered

    def _finish(self, work: Any) -> None:
        work.wait()
        if self._backend == "nccl":  # there the stream waits, not we
            self._torch.cuda.current_stream(self._device).synchronize()


def join(
    rank: int,
    world_size: int,
    store: Any,
    *,
    backend: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
    **_: Any,
) -> SeparateGroup:
    """See distributed.init_process_group."""
    import torch.distributed

    if store is None:
        if world_size > 1:
            raise InvalidArgumentError(
                "the ranks of a process group need a store of torch, to find each other", "invalid argument"
            )
        store = torch.distributed.HashStore()
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend not in ("nccl", "gloo"):
        raise InvalidArgumentError(f"backend {backend!r}: a separate group has nccl and gloo", "invalid argument")
    return SeparateGroup(rank, world_size, store, backend=backend, timeout=timeout)


def _assign(tensor: Any, value: Any) -> None:
    if value.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(value)

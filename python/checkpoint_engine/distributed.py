"""Collectives under the names of the field's package, for trainers that call them between updates; updates need none of them.

Where torch is loaded they are torch's (torch.distributed), with its default group. Without torch they are the engine's own: numpy
arrays, over its control plane and transport. use_backend chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _process_group, _separate_group
from .tensors import torch_if_loaded

__all__ = [
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "init_process_group",
    "is_initialized",
    "new_group",
    "use_backend",
]

_chosen: str | None = None
_ours: _process_group.DefaultGroup | _separate_group.SeparateGroup | None = None


def _torch() -> Any:
    import torch.distributed

    return torch.distributed


def uses_torch() -> bool:
    """Whether the functions here are for torch's default group, and not for one that was made here."""
    if _ours is not None:
        return False
    return _chosen == "torch" or (_chosen is None and torch_if_loaded() is not None)


def uses_separate_group() -> bool:
    """Whether the next group is made by torch and is not its default group."""
    return _chosen == "vllm_nccl"


def current_group() -> _process_group.DefaultGroup | _separate_group.SeparateGroup | None:
    """What init_process_group has made here; None: nothing, or torch's default group."""
    return _ours


def _group() -> Any:
    if _ours is None:
        raise RuntimeError("there is no process group: call init_process_group first")
    return _ours


def use_backend(backend: str | None) -> None:
    """Chooses for the next init_process_group.

    Args:
        backend: "torch": its default group. "vllm_nccl": torch's collectives in a group of their own, beside a default group of
            the program's, which stays as it is. "checkpoint_engine": the engine's own, for tensors in host memory (others go
            through it). None or "": as before the first call. ValueError for another.
    """
    global _chosen
    known = ("torch", "vllm_nccl", "checkpoint_engine")
    if backend and backend not in known:
        raise ValueError(f"distributed backend {backend!r} is not there: use one of {known}")
    _chosen = backend or None


def init_process_group(rank: int, world_size: int, store: Any = None, **kwargs: Any) -> None:
    """Makes the default group; all ranks call it.

    Args:
        store: torch's, or without torch anything with set(key, text) and get(key) that waits. None for a single rank.
        kwargs: `timeout`, a timedelta for every call (10 minutes); torch: `backend` (nccl where there are GPUs, else gloo), and
            what else torch takes; the engine's own: `secret`, which all ranks must give (CHECKPOINT_ENGINE_SECRET), and `host`,
            where others reach rank 0 (MASTER_ADDR).
    """
    global _ours
    if not uses_torch():
        if _ours is not None:
            raise RuntimeError("there is a process group already: destroy_process_group it first")
        join = _separate_group.join if uses_separate_group() else _process_group.join
        _ours = join(rank, world_size, store, **kwargs)
        return
    import torch

    backend = kwargs.pop("backend", None) or ("nccl" if torch.cuda.is_available() else "gloo")
    _torch().init_process_group(backend=backend, rank=rank, world_size=world_size, store=store, **kwargs)


def destroy_process_group(group: Any = None) -> None:
    """None: the default group; rank 0 of the engine's own waits until the others have called it too."""
    global _ours
    if uses_torch():
        _torch().destroy_process_group(group)
    elif group is None:
        left, _ours = _group(), None
        left.leave()
    else:
        _group().leave_group(group)


def is_initialized() -> bool:
    """Whether there is a default group."""
    return bool(_torch().is_initialized()) if uses_torch() else _ours is not None


def new_group(ranks: Sequence[int] | None = None, **kwargs: Any) -> Any:
    """A group of some ranks; all ranks call it, in the same order. None: all ranks."""
    return _torch().new_group(ranks, **kwargs) if uses_torch() else _group().new_group(ranks)


def broadcast(tensor: Any, src: int = 0, group: Any = None, **kwargs: Any) -> None:
    """`tensor` of rank `src`, on every rank of the group, in place; equal sizes everywhere."""
    if uses_torch():
        _torch().broadcast(tensor, src, group, **kwargs)
    else:
        _group().broadcast(tensor, src, group)


def all_reduce(tensor: Any, op: Any = None, group: Any = None, **kwargs: Any) -> None:
    """In place. op: torch's ReduceOp; without torch "sum", "product", "min", "max"; None: the sum.

    The engine's own sends every rank's tensor to all: for small ones.
    """
    if uses_torch():
        _torch().all_reduce(tensor, _torch().ReduceOp.SUM if op is None else op, group, **kwargs)
    else:
        _group().all_reduce(tensor, op, group)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Puts `obj` of every rank into `object_list`. torch: by pickle, only among ranks that trust each other; else as JSON."""
    if uses_torch():
        _torch().all_gather_object(object_list, obj, group)
    else:
        _group().all_gather_object(object_list, obj, group)


def barrier(group: Any = None, **kwargs: Any) -> None:
    """Waits until every rank of the group has called it."""
    if uses_torch():
        _torch().barrier(group, **kwargs)
    else:
        _group().barrier(group)

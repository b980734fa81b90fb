"""Collectives under the names of the field's package, for trainers that call them between updates; updates need none of them.

Where torch is loaded they are torch's (torch.distributed). Without torch they are the engine's own: numpy arrays, over its control
plane and transport. use_backend chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _process_group
from ._log import logger
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
_ours: _process_group.DefaultGroup | None = None


def _torch() -> Any:
    import torch.distributed

    return torch.distributed


def uses_torch() -> bool:
    """Whether the default group is torch's; where there is none, the next one."""
    if _ours is not None:
        return False
    return _chosen == "torch" or (_chosen is None and torch_if_loaded() is not None)


def _group() -> _process_group.DefaultGroup:
    if _ours is None:
        raise RuntimeError("there is no process group: call init_process_group first")
    return _ours


def use_backend(backend: str | None) -> None:
    """Chooses for the next init_process_group.

    Args:
        backend: "torch", which also serves "vllm_nccl"; "checkpoint_engine", the engine's own, for tensors in host memory (others
            go through it); None or "": torch's where torch is loaded. ValueError for another.
    """
    global _chosen
    if backend == "vllm_nccl":
        logger.info("distributed backend vllm_nccl: torch's nccl serves")
        backend = "torch"
    if backend not in (None, "", "torch", "checkpoint_engine"):
        raise ValueError(f"distributed backend {backend!r} is not there: use 'torch' or 'checkpoint_engine'")
    _chosen = backend or None


def init_process_group(rank: int, world_size: int, store: Any = None, **kwargs: Any) -> None:
    """Makes the default group; all ranks call it.

    Args:
        store: torch's, or without torch anything with set(key, text) and get(key) that waits. None for a single rank.
        kwargs: `timeout`, a timedelta for every call (10 minutes); torch: `backend` (nccl where there are GPUs, else gloo), and
            what else torch takes; ours: `secret`, which all ranks must give (CHECKPOINT_ENGINE_SECRET), and `host`, where others reach
            rank 0 (MASTER_ADDR).
    """
    global _ours
    if not uses_torch():
        if _ours is not None:
            raise RuntimeError("there is a process group already: destroy_process_group it first")
        kwargs.pop("backend", None)
        _ours = _process_group.join(rank, world_size, store, **kwargs)
        return
    import torch

    backend = kwargs.pop("backend", None) or ("nccl" if torch.cuda.is_available() else "gloo")
    _torch().init_process_group(backend=backend, rank=rank, world_size=world_size, store=store, **kwargs)


def destroy_process_group(group: Any = None) -> None:
    """None: the default group; rank 0 of ours waits until the others have called it too."""
    global _ours
    if uses_torch():
        _torch().destroy_process_group(group)
    elif group is None:
        left, _ours = _group(), None
        left.leave()


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

    Ours sends every rank's tensor to all: for small ones.
    """
    if uses_torch():
        _torch().all_reduce(tensor, _torch().ReduceOp.SUM if op is None else op, group, **kwargs)
    else:
        _group().all_reduce(tensor, op, group)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Puts `obj` of every rank into `object_list`. torch: by pickle, only among ranks that trust each other; ours: as JSON."""
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

"""torch's collectives under the names of the field's package, for trainers that call them between updates.

The engine's own collectives are in C++ and need no process group. torch is imported with the first call.
"""

from __future__ import annotations

from typing import Any

from ._log import logger

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


def _dist() -> Any:
    import torch.distributed

    return torch.distributed


def use_backend(backend: str | None) -> None:
    """None or "torch": torch.distributed, which also serves "vllm_nccl"; ValueError for another."""
    if backend == "vllm_nccl":
        logger.info("distributed backend vllm_nccl: torch's nccl serves")
    elif backend not in (None, "", "torch"):
        raise ValueError(f"distributed backend {backend!r} is not there: use 'torch'")


def init_process_group(rank: int, world_size: int, store: Any, **kwargs: Any) -> None:
    """Makes torch's default group over `store`; backend: kwargs["backend"], else nccl where there are GPUs, else gloo."""
    import torch

    backend = kwargs.pop("backend", None) or ("nccl" if torch.cuda.is_available() else "gloo")
    _dist().init_process_group(backend=backend, rank=rank, world_size=world_size, store=store, **kwargs)


def destroy_process_group(group: Any = None) -> None:
    """None: the default group."""
    _dist().destroy_process_group(group)


def is_initialized() -> bool:
    """Whether there is a default group."""
    return bool(_dist().is_initialized())


def new_group(ranks: list[int], **kwargs: Any) -> Any:
    """A group of some ranks; all ranks call it."""
    return _dist().new_group(ranks, **kwargs)


def broadcast(tensor: Any, src: int = 0, group: Any = None, **kwargs: Any) -> None:
    """`tensor` of rank `src`, on every rank of the group, in place."""
    _dist().broadcast(tensor, src, group, **kwargs)


def all_reduce(tensor: Any, op: Any = None, group: Any = None, **kwargs: Any) -> None:
    """op: torch's ReduceOp; None: the sum."""
    _dist().all_reduce(tensor, _dist().ReduceOp.SUM if op is None else op, group, **kwargs)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Puts `obj` of every rank into `object_list`, by pickle: only among ranks that trust each other."""
    _dist().all_gather_object(object_list, obj, group)


def barrier(group: Any = None, **kwargs: Any) -> None:
    """Waits until every rank of the group has called it."""
    _dist().barrier(group, **kwargs)

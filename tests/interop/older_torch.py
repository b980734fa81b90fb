"""Three names that checkpoint-engine 0.4.2 takes from torch 2, for Debian 12's torch 1.13. Imported before it; nothing happens where
torch has them.
"""
import ctypes
import gc
import inspect
import time

import torch
import torch.distributed.distributed_c10d as c10d


def add_to_type(type_, name, attribute):
    """torch.dtype is a type of C, which takes no attributes by assignment."""
    gc.get_referents(type_.__dict__)[0][name] = attribute
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(type_))


def store_based_barrier(rank, store, group_name=None, rendezvous_count=None, timeout=None):
    """The barrier of torch 2 for the call with names; 1.13's own for torch itself, which gives no group's name."""
    if not isinstance(group_name, str):
        return older_barrier(rank, store, timeout if group_name is None else group_name)
    key = f"store_based_barrier_key:{group_name}"
    end = time.monotonic() + timeout.total_seconds()
    arrived = store.add(key, 1)
    # All ranks come to barrier k before one comes to barrier k + 1.
    target = -(-arrived // rendezvous_count) * rendezvous_count
    while store.add(key, 0) < target:
        if time.monotonic() > end:
            raise RuntimeError(f"rank {rank}: timed out in the barrier {group_name}")
        time.sleep(0.01)


if not hasattr(torch.dtype, "itemsize"):
    add_to_type(torch.dtype, "itemsize", property(lambda dtype: torch.empty((), dtype=dtype).element_size()))
if not hasattr(torch.Tensor, "nbytes"):
    torch.Tensor.nbytes = property(lambda tensor: tensor.numel() * tensor.element_size())
if "group_name" not in inspect.signature(c10d._store_based_barrier).parameters:
    older_barrier, c10d._store_based_barrier = c10d._store_based_barrier, store_based_barrier

"""Mooncake's transfer engine under the field's name for it: memory that other processes read by address."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ._log import logger
from .device_utils import get_ip

if TYPE_CHECKING:
    from .device_utils import DeviceManager

__all__ = ["P2PStore"]

_ATTEMPTS = 8  # ranks of one host that start at once may want the same port


class _Tensor(Protocol):
    @property
    def nbytes(self) -> int: ...
    def data_ptr(self) -> int: ...


def start_engine(host: str, protocol: str, device: str) -> Any:
    """A mooncake.engine.TransferEngine that others reach at host:get_rpc_port().

    Raises:
        ImportError: Mooncake is not installed.
        RuntimeError: it does not start.
    """
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise ImportError(
            f"Mooncake's transfer engine cannot be imported ({error}): install checkpoint-engine[p2p], and libibverbs1"
        ) from error
    code = 0
    for attempt in range(_ATTEMPTS):
        engine = TransferEngine()
        code = engine.initialize(host, "P2PHANDSHAKE", protocol, device)
        if code == 0:
            return engine
        logger.warning("Mooncake does not start at %s (%s, device %r): %d; attempt %d", host, protocol, device, code, attempt)
        time.sleep(random.uniform(0.2, 1.0))
    raise RuntimeError(f"Mooncake does not start at {host} ({protocol}, device {device!r}): {code}")


class P2PStore:
    """Memory that is registered with Mooncake, and reads of others' memory.

    Args:
        device_manager: says which protocol and RDMA device this rank uses.

    RANK, as torchrun sets it, chooses the device; 0 where it is not set. Errors of Mooncake are RuntimeError.

    Attributes:
        addr: "host:port", how others name this store.
        device: the RDMA device, or "".
        named_tensors: what is registered.
    """

    def __init__(self, device_manager: DeviceManager):
        self.rank = int(os.environ.get("RANK", "0"))
        protocol = device_manager.transfer_engine_protocol
        ranks = max(1, device_manager.device_module.device_count())
        self.device = device_manager.rdma_device(self.rank % ranks)
        self.ip = get_ip()
        self.engine = start_engine(self.ip, protocol, self.device)
        self.port: int = self.engine.get_rpc_port()
        self.named_tensors: dict[str, _Tensor] = {}
        self._sizes: dict[int, int] = {}  # of what Mooncake holds, by address
        logger.info("rank %d: Mooncake at %s, %s %s", self.rank, self.addr, protocol, self.device)

    @property
    def addr(self) -> str:
        return f"{self.ip}:{self.port}"

    def register_named_tensors(self, named_tensors: Mapping[str, _Tensor]) -> None:
        """All of them or none. The tensors are referenced until they are unregistered; those at one address (tied weights) are
        one piece of memory, which stays until the last of them goes."""
        taken = sorted(named_tensors.keys() & self.named_tensors.keys())
        if taken:
            raise ValueError(f"registered already: {', '.join(taken)}")
        fresh: dict[int, int] = {}
        for name, tensor in named_tensors.items():
            pointer = tensor.data_ptr()
            held = self._sizes.get(pointer)
            if held is None:
                fresh[pointer] = max(tensor.nbytes, fresh.get(pointer, 0))
            elif tensor.nbytes > held:
                raise ValueError(f"{name} has {tensor.nbytes} bytes where {held} are registered: unregister those first")
        code = self.engine.batch_register_memory(list(fresh), list(fresh.values())) if fresh else 0
        if code != 0:
            for pointer in fresh:  # Mooncake keeps those before the one that failed
                self.engine.unregister_memory(pointer)
            raise RuntimeError(f"Mooncake cannot register {len(named_tensors)} tensors: {code}; is `ulimit -l` large enough?")
        self._sizes.update(fresh)
        self.named_tensors.update(named_tensors)

    def unregister_named_tensors(self, names: Sequence[str]) -> int:
        """How many were unregistered: all of `names`. KeyError names one that is not registered."""
        gone = {name: self.named_tensors[name] for name in names}
        used = {tensor.data_ptr() for name, tensor in self.named_tensors.items() if name not in gone}
        unused = list({tensor.data_ptr() for tensor in gone.values()} - used)
        code = self.engine.batch_unregister_memory(unused) if unused else 0
        if code != 0:
            raise RuntimeError(f"Mooncake cannot unregister {', '.join(names)}: {code}")
        for pointer in unused:
            del self._sizes[pointer]
        for name in gone:
            del self.named_tensors[name]
        return len(gone)

    def batch_transfer_sync_read(
        self, target_hostname: str, buf_ptrs: Sequence[int], remote_ptrs: Sequence[int], lens: Sequence[int]
    ) -> None:
        """Reads `lens[i]` bytes at `remote_ptrs[i]` of the store `target_hostname` to `buf_ptrs[i]`, which is registered here."""
        code = self.engine.batch_transfer_sync_read(target_hostname, list(buf_ptrs), list(remote_ptrs), list(lens))
        if code != 0:
            raise RuntimeError(f"Mooncake cannot read {sum(lens)} bytes of {target_hostname}: {code}")

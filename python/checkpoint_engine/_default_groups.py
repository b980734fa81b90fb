"""The process groups that a ParameterServer makes for programs which call collectives between its calls; it needs none itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from . import _core, _torch_group, distributed
from ._process_group import ServerStore


class DefaultGroups:
    """Of one server. What was there before, or comes from elsewhere later, is left alone.

    Args:
        master_addr: where other ranks reach rank 0; None: MASTER_ADDR.
        secret: for the engine's own group.
    """

    def __init__(self, server: _core.ParameterServer, master_addr: str | None, secret: str):
        self._server = server
        self._master_addr = master_addr
        self._secret = secret
        self._torch_group: Any = None
        self._group: Any = None

    def make(self, timeout: timedelta) -> None:
        """torch's where torch is loaded, and that of checkpoint_engine.distributed where it is another. Collective."""
        separate = distributed.uses_separate_group()
        if not separate:
            made = _torch_group.make(self._server, self._master_addr, timeout)
            self._torch_group = made or self._torch_group
        if distributed.uses_torch() or distributed.is_initialized():
            return
        store: Any = ServerStore(self._server, timeout)
        if separate:
            _torch_group.use_own_gpu(self._server)
            store = _torch_group.make_store(self._server, self._master_addr, timeout)
        distributed.init_process_group(
            self._server.rank,
            self._server.world_size,
            store,
            timeout=timeout,
            secret=self._secret,
            host=self._master_addr,
        )
        self._group = distributed.current_group()

    def end(self) -> None:
        if self._torch_group is not None:
            made, self._torch_group = self._torch_group, None
            _torch_group.destroy(made)
        if self._group is not None:
            made, self._group = self._group, None
            if distributed.current_group() is made:
                distributed.destroy_process_group()

"""torch's default process group, for programs that expect one; the engine's own work needs none."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from . import _core
from ._hosts import master_host
from .tensors import torch_if_loaded


def make(server: _core.ParameterServer, master_addr: str | None, timeout: timedelta) -> Any:
    """Makes the group over all ranks where torch is loaded and has none. Collective.

    Returns it, for destroy(); None where it was not made.
    """
    torch = torch_if_loaded()
    if torch is None or not torch.distributed.is_available() or torch.distributed.is_initialized():
        return None
    store = make_store(server, master_addr, timeout)
    use_own_gpu(server)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(
        backend, store=store, rank=server.rank, world_size=server.world_size, timeout=timeout
    )
    return torch.distributed.group.WORLD


def destroy(made: Any) -> None:
    """Destroys the default group, unless somebody has done so already, and made another one perhaps."""
    torch = torch_if_loaded()
    if torch is not None and torch.distributed.is_initialized() and torch.distributed.group.WORLD is made:
        torch.distributed.destroy_process_group()


def use_own_gpu(server: _core.ParameterServer) -> None:
    """Makes the engine's GPU torch's current one, as the field's package does: nccl needs it."""
    torch = torch_if_loaded()
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_device(server.local_rank % torch.cuda.device_count())


def make_store(server: _core.ParameterServer, master_addr: str | None, timeout: timedelta) -> Any:
    """A store of torch for the ranks of the server, at a port that nobody else takes meanwhile. Collective."""
    import torch.distributed

    seconds = timeout.total_seconds()
    host = master_host(master_addr)
    if server.rank > 0:
        port = int(server.all_gather(b"", seconds)[0])
        return torch.distributed.TCPStore(host, port, server.world_size, is_master=False, timeout=timeout)
    listener = _listener()
    port = listener.getsockname()[1]
    store = torch.distributed.TCPStore(
        host, port, server.world_size, is_master=True, timeout=timeout, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    server.all_gather(str(port).encode(), seconds)
    return store


def _listener() -> socket.socket:
    """A port of the kernel's choice that nobody else can take meanwhile."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    if family == socket.AF_INET6:
        return socket.create_server(("", 0), family=family, dualstack_ipv6=True)
    return socket.create_server(("", 0))

"""torch's default process group, for programs that expect one; the engine's own work needs none."""

from __future__ import annotations

import socket
from datetime import timedelta

from . import _core
from ._hosts import master_host
from .tensors import torch_if_loaded


def make(
    server: _core.ParameterServer, master_addr: str | None, gpu_count: int | None, timeout: timedelta
) -> bool:
    """Makes the group over all ranks where torch is loaded and has none; True when this call made it. Collective.

    Where there are GPUs, this rank's becomes torch's current one, as the field's package makes it: nccl needs it.
    """
    torch = torch_if_loaded()
    if torch is None or not torch.distributed.is_available() or torch.distributed.is_initialized():
        return False
    seconds = timeout.total_seconds()
    host = master_host(master_addr)
    store = None
    if server.rank == 0:
        listener = _listener()
        port = listener.getsockname()[1]
        store = torch.distributed.TCPStore(
            host, port, server.world_size, is_master=True, timeout=timeout, wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        server.all_gather(str(port).encode(), seconds)
    else:
        port = int(server.all_gather(b"", seconds)[0])
        store = torch.distributed.TCPStore(host, port, server.world_size, is_master=False, timeout=timeout)
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "nccl"
        torch.cuda.set_device(server.rank % (gpu_count or torch.cuda.device_count()))
    torch.distributed.init_process_group(
        backend, store=store, rank=server.rank, world_size=server.world_size, timeout=timeout
    )
    return True


def destroy() -> None:
    """Destroys the default group, unless somebody has done so already."""
    torch = torch_if_loaded()
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _listener() -> socket.socket:
    """A port of the kernel's choice that nobody else can take meanwhile."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    if family == socket.AF_INET6:
        return socket.create_server(("", 0), family=family, dualstack_ipv6=True)
    return socket.create_server(("", 0))

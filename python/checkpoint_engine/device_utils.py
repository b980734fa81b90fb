"""What the field's package tells of devices and hosts."""

from __future__ import annotations

import os
import pathlib
import socket
from typing import Any

from . import _core
from .tensors import torch_if_loaded

__all__ = ["DeviceManager", "get_ip", "npu_generate_uuid"]


def get_ip() -> str:
    """The address of this host that others most likely reach it by; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation address: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def npu_generate_uuid() -> str:
    """Raises: there is no support for NPUs."""
    raise NotImplementedError("NPUs are not supported: devices are cuda and host")


class DeviceManager:
    """The kind of device that torch sees here: "cuda" or "cpu"."""

    def __init__(self) -> None:
        torch = torch_if_loaded()
        self.device_type = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"

    @property
    def device_module(self) -> Any:
        """torch.cuda or torch.cpu."""
        import torch

        return getattr(torch, self.device_type)

    @property
    def transfer_engine_protocol(self) -> str:
        """Mooncake's: "efa" or "rdma" where there are such devices, else "tcp"; MC_FORCE_TCP wins."""
        if os.environ.get("MC_FORCE_TCP"):
            return "tcp"
        drivers = {path.resolve().name for path in pathlib.Path("/sys/class/infiniband").glob("*/device/driver")}
        return "efa" if "efa" in drivers else "rdma" if drivers else "tcp"

    def rdma_device(self, rank: int, ranks: int | None = None) -> str:
        """Of rank number `rank` of the `ranks` (None: as many as devices) of this host; "" where there is none."""
        devices = _core.rdma_devices(rank, ranks or max(rank + 1, self.device_module.device_count()))
        return devices[0].split(":")[0] if devices and self.transfer_engine_protocol != "tcp" else ""

    @property
    def backend(self) -> str:
        """torch.distributed's for it."""
        return "nccl" if self.device_type == "cuda" else "gloo"

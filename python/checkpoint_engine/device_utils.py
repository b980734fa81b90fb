"""What the field's package tells of devices and hosts."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from . import _core
from .tensors import torch_if_loaded

__all__ = ["DeviceManager", "get_ip", "npu_generate_uuid"]


def get_ip() -> str:
    """The address of this host that others most likely reach it by (docs/p2p.md): PS_HOST_IP, else that of the default route,
    of version 4 or 6. No packet is sent."""
    return _core.own_address()


def device_uuid(local_rank: int) -> str:
    """Of the GPU of a rank, as torch sees it; "" without one."""
    torch = torch_if_loaded()
    if torch is None or not torch.cuda.is_available():
        return ""
    properties = torch.cuda.get_device_properties(local_rank % torch.cuda.device_count())
    uuid = getattr(properties, "uuid", None)  # since torch 2.4
    return f"GPU-{uuid}" if uuid is not None else ""


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
        devices = _core.rdma_devices(rank, ranks or max(rank + 1, self.device_module.device_count()), device_uuid(rank))
        return devices[0].split(":")[0] if devices and self.transfer_engine_protocol != "tcp" else ""

    @property
    def backend(self) -> str:
        """torch.distributed's for it."""
        return "nccl" if self.device_type == "cuda" else "gloo"

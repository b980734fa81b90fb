"""The class that vLLM's --worker-extension-cls makes a base of every worker."""

from __future__ import annotations

from typing import Any

from ._receiver import update_weights_from_ipc
from .vllm_reload import ModelReload, models_of


class VllmColocateWorkerExtension:
    """Gives vLLM's workers, on GPUs and on the CPU, the method update_weights_from_ipc, which /collective_rpc calls.

    Start vLLM with `--worker-extension-cls checkpoint_engine.worker.VllmColocateWorkerExtension` and
    `VLLM_SERVER_DEV_MODE=1`. Whatever fails, here or on another worker of the update, fails the call.
    """

    def update_weights_from_ipc(self, zmq_handles: dict[str, str]) -> None:
        """Takes one update, from the rank that has this worker's device.

        Args:
            zmq_handles: address by device: "GPU-<uuid>", on the CPU "CPU-<number of the worker in its instance>".
        """
        receive(zmq_handles, self.rank, self.device, ModelReload(models_of(self), self.device))


def receive(addresses: dict[str, str], rank: int, device: Any, reload: ModelReload) -> None:
    """One update of a vLLM worker, from the rank that has its device: whole, or `reload` is abandoned and the cause raised.

    Args:
        addresses: by device, for every worker of the engine.
        rank: of the worker in its engine.
        device: torch's, of the worker.
        reload: begun here, or by vLLM before.
    """
    try:
        address = _address_of(addresses, worker_key(rank, device))
        reload.begin()
        update_weights_from_ipc(
            _zmq_context(), address, device.index, run=reload.load, post_hook=reload.finish,
            current_stream_only=reload.reads_on_current_stream,
        )
    except BaseException:
        reload.abandon()
        raise


def _address_of(addresses: dict[str, str], key: str) -> str:
    if key not in addresses:
        raise ValueError(
            f"no address for this worker's device {key}; there are {', '.join(sorted(addresses))}: are the ranks of "
            "this engine on its devices, and is the instance size right?"
        )
    return addresses[key]


def worker_key(rank: int, device: Any) -> str:
    """The key of a vLLM worker's device in an engine's map of addresses."""
    from vllm.platforms import current_platform

    if current_platform.device_type == "cuda":
        uuid = str(current_platform.get_device_uuid(device.index))
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    if current_platform.device_type == "cpu":
        return f"CPU-{rank}"
    raise ValueError(f"vLLM's device type {current_platform.device_type} is none that weights can be moved to: cuda, cpu")


def _zmq_context() -> Any:
    import zmq

    return zmq.Context.instance()

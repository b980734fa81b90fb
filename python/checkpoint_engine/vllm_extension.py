"""The class that vLLM's --worker-extension-cls makes a base of every worker."""

from __future__ import annotations

from typing import Any


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
        from .vllm_reload import ModelReload
        from .worker import update_weights_from_ipc

        key = worker_key(self)
        if key not in zmq_handles:
            raise ValueError(
                f"no address for this worker's device {key}; there are {', '.join(sorted(zmq_handles))}: are the ranks of "
                "this engine on its devices, and is the instance size right?"
            )
        reload = ModelReload(self)
        try:
            update_weights_from_ipc(
                _zmq_context(), zmq_handles[key], self.device.index, run=reload.load, post_hook=reload.finish
            )
        except BaseException:
            reload.abandon()
            raise


def worker_key(worker: Any) -> str:
    """The key of this vLLM worker's device in an engine's map of addresses."""
    from vllm.platforms import current_platform

    if current_platform.device_type == "cuda":
        uuid = str(current_platform.get_device_uuid(worker.device.index))
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    if current_platform.device_type == "cpu":
        return f"CPU-{worker.rank}"
    raise ValueError(f"vLLM's device type {current_platform.device_type} is none that weights can be moved to: cuda, cpu")


def _zmq_context() -> Any:
    import zmq

    return zmq.Context.instance()

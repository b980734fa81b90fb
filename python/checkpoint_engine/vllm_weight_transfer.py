"""vLLM's own weight transfer, with our ranks at its other end.

Start vLLM with `--weight-transfer-config '{"backend": "checkpoint_engine"}'` and `VLLM_SERVER_DEV_MODE=1`; the package registers
the backend by itself (vllm_plugin). `checkpoint-engine update --engine vllm-native` makes the calls; /update_weights carries the
addresses of the ranks, by the device of each worker, and never a pickle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from .vllm_extension import receive
from .vllm_reload import ModelReload


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing has to be agreed on beforehand."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Where the ranks wait: address by device ("GPU-<uuid>", "CPU-<number of the worker in its instance>")."""

    addresses: dict[str, str] = field(default_factory=dict)


class CheckpointWeightTransferEngine(WeightTransferEngine):
    """Takes one update in one call of receive_weights(): the model is complete when it returns, and on an error nothing of it
    is left in the layers. So the session around it has nothing to do, and one that was left open holds nothing.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        # Now: in a reload that vLLM itself begins, parameters are on the meta device.
        self._worker_device = getattr(self, "device", None) or next(self.model.parameters()).device

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        pass

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The inherited one waits for an accelerator, which a CPU has none of; our receiver has waited already.
        self.receive_weights(self.parse_update_info(update_info))

    def parse_update_info(self, update_info: dict[str, Any]) -> UpdateInfo:
        try:
            info = super().parse_update_info(update_info)
            if getattr(info, "update_kind", "dense") != "dense":
                raise ValueError(f"the backend checkpoint_engine has no updates of the kind {info.update_kind}")
            return info
        except BaseException:
            self._reload(begun=True).abandon()  # the worker of vLLM 0.23 has begun one, and will not end it now
            raise

    def receive_weights(self, update_info: UpdateInfo, load_weights: Any = None) -> None:
        """Loads everything that the rank of this worker's device sends.

        Up to vLLM 0.23 the worker itself has begun a layerwise reload, ends it afterwards, and gives `load_weights`.
        """
        reload = self._reload(begun=load_weights is not None)
        receive(update_info.addresses, self.parallel_config.rank, self._worker_device, reload)

    def _reload(self, begun: bool) -> ModelReload:
        config = getattr(self, "model_config", None) or _config_of(self.model)
        return ModelReload(
            [(self.model, config)],
            self._worker_device,
            begun=begun,
            drafter=self.model is not getattr(self, "_default_model", self.model),  # vLLM puts it here for its session
        )

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """vLLM 0.23 asks for it. The other end of this backend is a rank, not the trainer's loop."""
        raise NotImplementedError(
            "the backend checkpoint_engine is fed by its ranks: register the weights with checkpoint_engine.ps.ParameterServer, "
            "or run `checkpoint-engine update --engine vllm-native`"
        )


def _config_of(model: Any) -> Any:
    """What a reload wants of a model's configuration, where vLLM does not hand it over."""
    return SimpleNamespace(dtype=next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()))

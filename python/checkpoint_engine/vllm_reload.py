"""How the weights of a running vLLM worker are replaced in place: by the worker extension, and by the weight transfer backend.

vLLM's layerwise reload is the rule: it loads quantised models without a patch, and keeps CUDA graphs valid. A vLLM that has none
gets load_weights and process_weights_after_loading, which suffices for models that are not quantised.
"""

from __future__ import annotations

from typing import Any

from ._log import logger

Weights = list[tuple[str, Any]]


class ModelReload:
    """One update of all models of a worker: the target, and the drafter where there is one.

    Any number of load(), then finish(); after an error anywhere, abandon(), without which the next update would mix what
    layers still hold of this one with its own.
    """

    def __init__(self, worker: Any):
        self._worker = worker
        self._models = _models(worker)
        self._layerwise = _layerwise_reload()
        if self._layerwise is None:
            _refuse_quantised(self._models)
            return
        for model, config in self._models:
            if _still_loading(model):
                logger.warning("an update that ended half-way left layers that wait for weights; they are put back first")
                self._layerwise.finalize_layerwise_reload(model, config)
            self._layerwise.initialize_layerwise_reload(model)

    def load(self, weights: Weights) -> None:
        """Loads a bucket. The tensors may be overwritten on return."""
        if self._layerwise is not None:
            weights = [(name, tensor.clone()) for name, tensor in weights]  # kept until their layer is complete
        for model, _ in self._models:
            model.load_weights(weights)

    def finish(self) -> None:
        """Everything has been loaded."""
        for model, config in self._models:
            if self._layerwise is not None:
                self._layerwise.finalize_layerwise_reload(model, config)
            else:
                _process_weights(model, config, self._worker.device)

    def abandon(self) -> None:
        """Takes the models out of the reload. Their weights are incomplete until an update succeeds."""
        if self._layerwise is None:
            return
        for model, config in self._models:
            try:
                self._layerwise.finalize_layerwise_reload(model, config)
            except Exception:
                # What made the update fail is the error to raise; the next start tries this again.
                logger.exception("a model cannot be taken out of a reload that failed")


def _models(worker: Any) -> list[tuple[Any, Any]]:
    """Every model with its configuration."""
    runner = worker.model_runner
    target = runner.get_model() if hasattr(runner, "get_model") else runner.model
    models = [(target, worker.model_config)]
    drafter = getattr(getattr(runner, "drafter", None), "model", None)
    if drafter is not None:
        speculative = getattr(getattr(worker, "vllm_config", None), "speculative_config", None)
        models.append((drafter, getattr(speculative, "draft_model_config", None) or worker.model_config))
    return models


def _layerwise_reload() -> Any:
    try:
        from vllm.model_executor.model_loader import reload
    except ImportError:
        return None
    return reload if hasattr(reload, "initialize_layerwise_reload") else None


def _still_loading(model: Any) -> bool:
    from vllm.model_executor.model_loader.reload import layerwise

    return any(layerwise.get_layerwise_info(layer).can_load() for layer in model.modules())


def _refuse_quantised(models: list[tuple[Any, Any]]) -> None:
    for _, config in models:
        method = getattr(config, "quantization", None)
        if method is not None:
            import vllm

            raise RuntimeError(
                f"vLLM {vllm.__version__} cannot reload weights quantised by {method}: it has no layerwise reload "
                "(vllm.model_executor.model_loader.reload); use a newer vLLM, or a model that is not quantised"
            )


def _process_weights(model: Any, config: Any, device: Any) -> None:
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    process_weights_after_loading(model, config, device)

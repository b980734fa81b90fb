"""How the weights of a running vLLM worker are replaced in place: by the worker extension, and by the weight transfer backend.

vLLM's layerwise reload is the rule: it loads quantised models without a patch, and keeps CUDA graphs valid. A vLLM that has none
gets load_weights and process_weights_after_loading, which suffices for models that are not quantised.
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._lent import Weights
from ._log import logger
from .vllm_completeness import PARTIAL_UPDATES, missing_names, missing_weights


class ModelReload:
    """One update of some models of a worker, each with its configuration.

    begin(), any number of load(), then finish(); after an error anywhere, abandon(), without which the next update would mix
    what layers still hold of this one with its own.
    """

    def __init__(self, models: list[tuple[Any, Any]], device: Any, *, begun: bool = False, drafter: bool = False):
        """
        Args:
            models: the target model first.
            begun: vLLM has begun the layerwise reload itself, and ends it when the update has succeeded.
            drafter: there is no target model among them, but a drafter alone.
        """
        self._models = models
        self._drafter = drafter
        self._device = device
        self._begun_outside = begun
        self._layerwise = _layerwise_reload()
        self._loaded: list[set[str] | None] = [set() for _ in models]
        self._given: set[str] = set()
        self._experts = ExpertKernels(models, device)

    def begin(self) -> None:
        if self._layerwise is None:
            _refuse_quantised(self._models)
            return
        self._experts.forget()
        for model, config in [] if self._begun_outside else self._models:
            if _forget_loaded(model):
                logger.warning("an update that ended half-way left layers that wait for weights; they are put back first")
                self._layerwise.finalize_layerwise_reload(model, config)
            self._layerwise.initialize_layerwise_reload(model)

    @property
    def reads_on_current_stream(self) -> bool:
        """load() reads what it is given by copies of this thread's current CUDA stream alone, whatever the loaders do then."""
        return self._layerwise is not None

    def load(self, weights: Weights) -> None:
        """Loads a bucket. The tensors may be overwritten on return."""
        self._given.update(name for name, _ in weights)
        if self._layerwise is not None:
            weights = [(name, tensor.clone()) for name, tensor in weights]  # kept until their layer is complete
        for i, (model, _) in enumerate(self._models):
            loaded = _load_by_name(model, weights)
            if loaded is None:
                self._loaded[i] = None
            elif (names := self._loaded[i]) is not None:
                names.update(loaded)

    def finish(self) -> None:
        """Everything has been loaded. Raises when the target model lacks some of its weights."""
        self._check_complete()
        for model, config in [] if self._begun_outside else self._models:
            if self._layerwise is not None:
                self._layerwise.finalize_layerwise_reload(model, config)
            else:
                _process_weights(model, config, self._device)
        self._experts.restore()
        if getattr(self._device, "type", None) == "cpu":
            for model, _ in self._models:
                _pack_tied_heads(model)

    def _check_complete(self) -> None:
        """Of the target model only: a drafter shares weights with it, or loads what it needs of the same names."""
        if self._drafter:
            return
        model, _ = self._models[0]
        missing = (missing_names if self._layerwise is None else missing_weights)(model, self._loaded[0], self._given)
        if missing:
            raise RuntimeError(
                f"the update lacks weights of this model: {', '.join(missing[:5])}"
                f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}; register the whole checkpoint"
                f" ({PARTIAL_UPDATES}=1 in vLLM's environment allows updates of some layers)"
            )

    def abandon(self) -> None:
        """Takes the models out of the reload: layers that have not come whole keep the weights that they had. The models are
        of no use until an update succeeds.
        """
        if self._layerwise is None:
            return
        for model, config in self._models:
            try:
                _forget_loaded(model)
                self._layerwise.finalize_layerwise_reload(model, config)
            except Exception:
                # What made the update fail is the error to raise; the next start tries this again.
                logger.exception("a model cannot be taken out of a reload that failed")
        self._experts.restore()


class ExpertKernels:
    """The kernels of mixture-of-experts layers on a CPU, which want their weights packed.

    vLLM packs them with a kernel that it makes, and makes none where there is one: a reload would leave plain weights to a
    kernel that takes them for packed ones (0.32).
    """

    def __init__(self, models: list[tuple[Any, Any]], device: Any):
        on_cpu = getattr(device, "type", None) == "cpu"
        self._models = [model for model, _ in models] if on_cpu else []
        self._forgotten: list[tuple[Any, Any]] = []

    def forget(self) -> None:
        """A layer that is loaded from now on makes its kernel anew."""
        for model in self._models:
            for layer in model.modules():
                method = getattr(layer, "quant_method", None)
                kernel = getattr(method, "moe_kernel", None)
                if kernel is not None:
                    self._forgotten.append((method, kernel))
                    method.moe_kernel = None

    def restore(self) -> None:
        """Layers that were not loaded keep the kernels that they had."""
        for method, kernel in self._forgotten:
            if method.moe_kernel is None:
                method.moe_kernel = kernel
        self._forgotten.clear()


def _load_by_name(model: Any, weights: Weights) -> Any:
    """What load_weights() returns; its error with the tensor that it was at. Many of vLLM's are asserts without a word."""
    at = None

    def one_by_one() -> Any:
        nonlocal at
        for at in weights:
            yield at

    try:
        return model.load_weights(one_by_one())
    except Exception as error:
        if at is None:
            raise
        name, tensor = at
        raise RuntimeError(
            f"vLLM does not take {name} ({tensor.dtype}, shape {list(tensor.shape)}): {_core.type_and_text_of(error)}"
        ) from error


def models_of(worker: Any) -> list[tuple[Any, Any]]:
    """Every model of a worker with its configuration: the target, and the drafter where there is one."""
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


def _forget_loaded(model: Any) -> bool:
    """Whether layers wait for weights. What they have taken so far is dropped: the end of the reload then puts back what they
    had, where it would fill up with uninitialised memory, or fail once more over the tensor that made the update fail.
    """
    from vllm.model_executor.model_loader.reload import layerwise

    waiting = [info for info in map(layerwise.get_layerwise_info, model.modules()) if info.can_load()]
    for info in waiting:
        info.loaded_weights.clear()
        info.load_numel = 0
    return bool(waiting)


def _pack_tied_heads(model: Any) -> None:
    """On a CPU, vLLM packs a copy of the output layer's weights when it loads them. Those that are the embedding's come with the
    embedding, and nothing would pack them anew (0.32).
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    seen = set()
    for layer in model.modules():
        parameters = {id(parameter) for _, parameter in layer.named_parameters(recurse=False)}
        if isinstance(layer, VocabParallelEmbedding) and parameters & seen:
            layer.quant_method.process_weights_after_loading(layer)
        seen |= parameters


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

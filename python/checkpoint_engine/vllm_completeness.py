"""What an update has left out: vLLM's layerwise reload completes a layer of which only a part came with uninitialised memory, and
keeps a layer of which nothing came, and says nothing.

What a layer wants are the parameters that it has while it is in the reload, in the form of the checkpoint: with
`--quantization fp8` its weight in BF16, of a block-FP8 checkpoint its weight and the scales of the blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from ._log import logger

# Updates that bring only some of the weights on purpose; parts of a layer are never enough.
PARTIAL_UPDATES = "CHECKPOINT_ENGINE_PARTIAL_UPDATES"

# vLLM's ways to hold a layer that want exactly what the checkpoint has, by the beginnings of their classes' names. Others have
# parameters that a checkpoint may lack (zero points, activation scales), or pad them.
_EXACT_METHODS = ("Unquantized", "Fp8", "Online")
# Its scales have defaults.
_CACHE_METHOD = "BaseKVCacheMethod"
# Made from the configuration.
_NOT_IN_CHECKPOINTS = frozenset({"input_scale_ub"})


def missing_weights(model: Any, loaded: set[str] | None, given: set[str]) -> list[str]:
    """What a model in a layerwise reload lacks, in the order of its layers: parameters, and of those that are made of several
    tensors the missing ones.

    Args:
        loaded: the names that load_weights() returned; None where it returns none.
        given: the names of the tensors that have come.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    partial_is_fine = os.environ.get(PARTIAL_UPDATES, "0") not in ("", "0")
    layers = [(name, layer, get_layerwise_info(layer)) for name, layer in model.named_modules()]
    came_elsewhere = {id(tensor) for _, layer, info in layers for tensor in _loaded_tensors(layer, info)}
    missing = []
    for layer_name, layer, info in layers:
        method_names = _method_names(layer)
        if not info.can_load() or _CACHE_METHOD in method_names:
            continue
        wanted = dict(_wanted(layer))
        full_name = f"{layer_name}.{{}}".format if layer_name else str
        if not info.loaded_weights:
            # One that is tied to another layer's has come with that.
            tied = {name for name, tensor in info.kernel_tensors[0].items() if id(tensor) in came_elsewhere}
            names = [full_name(name) for name in wanted if name not in tied]
            if loaded is not None and not partial_is_fine:
                missing.extend(name for name in names if name not in loaded)
        elif not _is_exact(method_names):
            _say_unchecked(type(layer.quant_method).__name__)
        elif absent := wanted.keys() - {name for name, _ in info.loaded_weights}:
            missing.extend(full_name(name) for name in wanted if name in absent)
        elif info.load_numel < sum(wanted.values()) and not isinstance(layer, VocabParallelEmbedding):
            # A vocabulary is padded: its layer never fills up.
            parts = _missing_parts(model, layer_name, wanted, given)
            missing.extend(parts or [f"a part of {full_name(name)}" for name in wanted])
    return missing


def missing_names(model: Any, loaded: set[str] | None, given: set[str]) -> list[str]:
    """The same of a model that is loaded as it is, without a reload and not quantised: by names alone."""
    if loaded is None:
        return []
    partial_is_fine = os.environ.get(PARTIAL_UPDATES, "0") not in ("", "0")
    missing = []
    for name, _ in model.named_parameters():  # a tied one is there once
        if name not in loaded:
            missing.extend([] if partial_is_fine else [name])
            continue
        layer_name, _, parameter = name.rpartition(".")
        missing.extend(_missing_parts(model, layer_name, [parameter], given))
    return missing


def _missing_parts(model: Any, layer_name: str, wanted: Iterable[str], given: set[str]) -> list[str]:
    """The tensors of a fused layer that have not come, as far as vLLM's names of its parts are those of the checkpoint."""
    parent, _, fused = layer_name.rpartition(".")
    parts = [f"{parent}.{part}" if parent else part for part in getattr(model, "packed_modules_mapping", {}).get(fused, ())]
    names = [f"{part}.{parameter}" for parameter in wanted for part in parts]
    absent = [name for name in names if name not in given]
    return absent if len(absent) < len(names) else []


def _wanted(layer: Any) -> Iterator[tuple[str, int]]:
    """Names and elements of the parameters that the reload waits for. Buffers need not come."""
    for name, parameter in layer.named_parameters(recurse=False):
        loader = getattr(parameter, "weight_loader", None)
        elements = getattr(parameter, "weight_loader_numel", parameter.numel())
        if getattr(loader, "__name__", "") == "online_process_loader" and elements > 0 and name not in _NOT_IN_CHECKPOINTS:
            yield name, elements


def _loaded_tensors(layer: Any, info: Any) -> Iterator[Any]:
    """The tensors that the engine computes with, of a layer that has come."""
    if not info.can_load():
        yield from (tensor for _, tensor in layer.named_parameters(recurse=False))
    elif info.loaded_weights:
        yield from info.kernel_tensors[0].values()


def _method_names(layer: Any) -> set[str]:
    method = getattr(layer, "quant_method", None)
    return set() if method is None else {base.__name__ for base in type(method).__mro__}


def _is_exact(method_names: set[str]) -> bool:
    return not method_names or any(name.startswith(_EXACT_METHODS) for name in method_names)


@cache
def _say_unchecked(method: str) -> None:
    """Once for each."""
    logger.warning(
        "of layers quantised by %s, an update that lacks a part is not noticed, only one that lacks them whole; "
        "register the whole checkpoint",
        method,
    )

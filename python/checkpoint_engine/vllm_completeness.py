"""What an update has left out: vLLM's layerwise reload completes a layer of which only a part came with uninitialised memory, and
says nothing.
"""

from __future__ import annotations

import os
from typing import Any

# Updates that bring only some of the weights on purpose; parts of a fused layer are never enough.
PARTIAL_UPDATES = "CHECKPOINT_ENGINE_PARTIAL_UPDATES"


def missing_weights(model: Any, loaded: set[str] | None) -> list[str]:
    """Parameters of a model in a layerwise reload that have not come, or not whole, in the order of its layers.

    Args:
        model: without quantisation: what layers want then is what the checkpoint has.
        loaded: the names that load_weights() returned; None where it returns none.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    partial_is_fine = os.environ.get(PARTIAL_UPDATES, "0") not in ("", "0")
    missing = []
    for layer_name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load():
            continue
        names = [f"{layer_name}.{name}" if layer_name else name for name, _ in layer.named_parameters(recurse=False)]
        if info.load_numel > 0:
            # Buffers need not come. A vocabulary is padded: its layer never fills up.
            wanted = sum(getattr(p, "weight_loader_numel", p.numel()) for p in layer.parameters(recurse=False))
            if info.load_numel < wanted and not isinstance(layer, VocabParallelEmbedding):
                missing.extend(f"a part of {name}" for name in names)
        elif loaded is not None and not partial_is_fine:
            missing.extend(name for name in names if name not in loaded)
    return missing

"""What vLLM calls in each of its processes (entry point group vllm.general_plugins)."""

from __future__ import annotations

BACKEND = "checkpoint_engine"


def register() -> None:
    """Makes the weight transfer backend "checkpoint_engine" known to vLLM; again is fine.

    A vLLM that has no weight transfer is left alone: there the worker extension is the way.
    """
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:
        return
    if BACKEND in WeightTransferEngineFactory._registry:
        return
    WeightTransferEngineFactory.register_engine(
        BACKEND, "checkpoint_engine.vllm_weight_transfer", "CheckpointWeightTransferEngine"
    )

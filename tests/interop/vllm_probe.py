"""What a test sees and stops inside a vLLM worker. Imported into every worker as its extension; $VLLM_PROBE is a folder.

draft_checksums() is what /weight_checker is for the target model. A gate behind ModelReload.load(), which both of our routes go
through, holds an update where a fused layer has a part of its weights:

    hold        the name of a layer; the test writes it
    held        {"layer", "loaded", "wanted", "tensors"}: the gate is closed, and vLLM has counted so many elements of the layer
    go          the test opens the gate
    abandoned   {"before", "after"}: layers in a reload when the update was given up, and behind that
"""
import json
import os
import pathlib
import time

from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from checkpoint_engine import vllm_reload
from checkpoint_engine.worker import VllmColocateWorkerExtension

FOLDER = pathlib.Path(os.environ["VLLM_PROBE"])
load, abandon = vllm_reload.ModelReload.load, vllm_reload.ModelReload.abandon


class Probe:
    """For a vLLM that takes its weights by weight transfer."""

    def draft_checksums(self):
        from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

        digests = compute_tensor_digests(self.model_runner.get_draft_model())
        return {self._weight_checksum_prefix() + name: digest for name, digest in digests.items()}


class ProbedExtension(Probe, VllmColocateWorkerExtension):
    """Ours."""


def write(name, value):
    whole = FOLDER / f"{name}.new"
    whole.write_text(json.dumps(value))
    whole.rename(FOLDER / name)


def held_load(reload, weights):
    names = [name for name, _ in weights]
    load(reload, weights)
    hold = FOLDER / "hold"
    if not hold.exists():
        return
    wanted_name = hold.read_text()
    for name, layer in reload._models[0][0].named_modules():
        info = get_layerwise_info(layer)
        wanted = sum(getattr(p, "weight_loader_numel", p.numel()) for p in layer.parameters(recurse=False))
        if name != wanted_name or not 0 < info.load_numel < wanted:
            continue
        hold.unlink()
        write("held", {"layer": name, "loaded": info.load_numel, "wanted": wanted, "tensors": names})
        end = time.monotonic() + 60
        while not (FOLDER / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)


def watched_abandon(reload):
    def in_reload():
        return sum(get_layerwise_info(layer).can_load() for model, _ in reload._models for layer in model.modules())

    before = in_reload()
    abandon(reload)
    write("abandoned", {"before": before, "after": in_reload()})


vllm_reload.ModelReload.load = held_load
vllm_reload.ModelReload.abandon = watched_abandon

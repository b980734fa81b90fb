"""Updates that lack a tensor or bring a misshapen one, in vLLM's own model classes, loaders and layerwise reload, without a server:
models whose output layer is tied to the embedding, of FP8 blocks, and BF16 files with `--quantization fp8`. Each such update must fail
and name the tensor, and the next one leave every layer as a model has it that was loaded from disk.

A CPU has no FP8 kernels: those, and for `fp8` the operation that quantises a tensor, are stood in for here.

usage: PYTHONPATH=OURS:tests/interop python prove_reload.py [tied | block | fp8]... --cache FOLDER
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import torch
from safetensors.torch import load_file, save_file

import checkpoints
from checkpoint_engine.vllm_reload import ModelReload

BLOCK = 128
LAYER = "model.layers.1."
# Tensors that one update each lacks, and another brings with a row too little.
DAMAGED = ("input_layernorm.weight", "self_attn.k_proj.weight", "self_attn.o_proj.weight", "mlp.down_proj.weight")
DAMAGED_SCALES = ("self_attn.k_proj.weight_scale_inv", "mlp.down_proj.weight_scale_inv")


def make_plain(target, seed, *, tied):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=64, max_position_embeddings=512, tie_word_embeddings=tied)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
        else:
            parameter.data.normal_(1, 0.1)
    model.save_pretrained(target)
    checkpoints.save_tokenizer(target)


def make_blocks(source, target):
    """The same with the weights of linear layers in FP8, and a scale for each block."""
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        tensors[name] = weight
        if "proj" in name:
            rows, columns = weight.shape
            blocks = weight.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
            scales = blocks.abs().amax((1, 3)) / 448
            tensors[name] = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(rows, columns)
            tensors[name.replace(".weight", ".weight_scale_inv")] = scales
    target.mkdir()
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                     "weight_block_size": [BLOCK, BLOCK]}
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors")


def folders(cache, kind):
    """Two checkpoints; made once."""
    made = []
    for seed in (1, 2):
        plain = cache / f"reload-{'tied' if kind == 'tied' else 'plain'}-{seed}"
        if not plain.exists():
            make_plain(plain, seed, tied=kind == "tied")
        blocks = cache / f"reload-block-{seed}"
        if kind == "block" and not blocks.exists():
            make_blocks(plain, blocks)
        made.append(blocks if kind == "block" else plain)
    return made


class Kernel:
    """Has no weights of its own, and gives what a real one would be given."""

    def process_weights_after_loading(self, layer):
        pass

    def apply_weights(self, layer, x, bias=None):
        return torch.cat([parameter.data.flatten().float() for _, parameter in sorted(layer.named_parameters())])


def stand_in_for_kernels():
    from vllm.model_executor.layers.quantization import fp8
    from vllm.model_executor.layers.quantization.online import fp8 as online

    fp8.init_fp8_linear_kernel = online.init_fp8_linear_kernel = lambda **_: Kernel()
    online.ops.scaled_fp8_quant = lambda weight, scale, **_: (
        (weight.data.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale)


def load(folder, load_format, **more):
    """vLLM's model and its configuration."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    config = EngineArgs(model=str(folder), dtype="bfloat16", load_format=load_format, max_model_len=128, enforce_eager=True,
                        **more).create_engine_config()
    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/rendezvous", 0, "gloo")
            initialize_model_parallel(1, 1)
        return get_model(vllm_config=config), config


def contents(model):
    """What every layer makes of the same input, or its weights where it makes nothing of one."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    found = {}
    for name, layer in model.named_modules():
        torch.manual_seed(0)
        if isinstance(layer, LinearBase):
            found[name] = layer.quant_method.apply(layer, torch.randn(3, layer.input_size_per_partition, dtype=torch.bfloat16))
        elif isinstance(layer, VocabParallelEmbedding):
            found[name] = layer.quant_method.apply(layer, torch.randn(3, layer.weight.shape[1], dtype=torch.bfloat16))
            found[f"{name} itself"] = layer.weight.data.clone()
        else:
            found |= {f"{name}.{each}": tensor.data.clone() for each, tensor in layer.named_parameters(recurse=False)}
    return found


def differs(one, other):
    return sorted(one.keys() ^ other.keys()) + [name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])]


def update(model, config, tensors):
    """As our worker code does with what its rank sends; the error, or None."""
    from vllm.config import set_current_vllm_config

    reload = ModelReload([(model, config.model_config)], torch.device("cpu"))
    with set_current_vllm_config(config):
        try:
            reload.begin()
            items = list(tensors.items())
            for begin in range(0, len(items), 5):
                reload.load(items[begin : begin + 5])
            reload.finish()
        except Exception as error:
            reload.abandon()
            return str(error)
    return None


def prove(kind, cache):
    more = {"quantization": "fp8"} if kind == "fp8" else {}
    paths = folders(cache, kind)
    from_disk = [contents(load(path, "auto", **more)[0]) for path in paths]
    files = [load_file(path / "model.safetensors") for path in paths]
    model, config = load(paths[0], "dummy", **more)
    failures = []

    def expect(what, tensors, names):
        """An update that says `names`; the one behind it is right, of the checkpoint that was not there before."""
        said = update(model, config, tensors)
        if names is None and said is not None or names is not None and names not in str(said):
            failures.append(f"{kind}: {what}: it said {said}")
        expect.number = 1 - expect.number
        said = update(model, config, files[expect.number])
        if said is not None or (wrong := differs(contents(model), from_disk[expect.number])):
            failures.append(f"{kind}: behind {what}: {said or f'{wrong} are not those of the checkpoint'}")

    expect.number = 0
    for whole in files:
        expect("a whole checkpoint", whole, None)
    damaged = DAMAGED + (DAMAGED_SCALES if kind == "block" else ())
    for name in (LAYER + each for each in damaged):
        expect(f"an update without {name}", {each: tensor for each, tensor in files[0].items() if each != name}, name)
        expect(f"a short {name}", files[0] | {name: files[0][name][:-1].clone()}, name)
    embedding = "model.embed_tokens.weight"
    expect("an update without the embedding", {each: tensor for each, tensor in files[0].items() if each != embedding}, embedding)
    print(f"{kind}: {2 + 2 * len(damaged) + 1} updates, each with a right one behind it", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["tied", "block", "fp8"])
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    options = parser.parse_args()
    stand_in_for_kernels()
    failures = [each for kind in options.kinds for each in prove(kind, options.cache)]
    print("\n".join(failures) or "every layer was right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

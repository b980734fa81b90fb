"""Random Qwen3 checkpoints of the 8B model's shapes, for engines on GPUs.

    gpu_checkpoints.py [--shapes 8b|small|tiny] [--device cuda|cpu] FOLDER

Three checkpoints each in FOLDER/bf16-1 to -3 (16.4 GB; small: 1.1 GB) and FOLDER/block-fp8-1 to -3 (9.4 GB: scales of
128 x 128 blocks, as DeepSeek-V3 has them). The third has every other file of the first and of the second, by links. Files
appear with their last byte; FOLDER/bf16.ready and FOLDER/block-fp8.ready when all of a kind are there.
"""

import argparse
import json
import multiprocessing
import pathlib
import time

import checkpoints

SHAPES = {
    "8b": dict(layers=36, hidden=4096, inner=12288, heads=32, kv_heads=8, head=128, words=151936),
    "small": dict(layers=8, hidden=2048, inner=6144, heads=16, kv_heads=8, head=128, words=32768),
    "tiny": dict(layers=8, hidden=256, inner=512, heads=4, kv_heads=2, head=64, words=512),
}
KINDS = ("bf16", "block-fp8")
FILES = 4  # of a checkpoint
BLOCK = 128
FP8_MAX = 448


def layout(shape, file):
    """[(name, shape)] of one file of a checkpoint."""
    hidden, inner, head = shape["hidden"], shape["inner"], shape["head"]
    query, key = shape["heads"] * head, shape["kv_heads"] * head
    tensors = [("model.embed_tokens.weight", (shape["words"], hidden))] if file == 0 else []
    for layer in range(shape["layers"] * file // FILES, shape["layers"] * (file + 1) // FILES):
        tensors += [
            (f"model.layers.{layer}.{name}.weight", size)
            for name, size in (
                ("input_layernorm", (hidden,)),
                ("self_attn.q_proj", (query, hidden)),
                ("self_attn.k_proj", (key, hidden)),
                ("self_attn.v_proj", (key, hidden)),
                ("self_attn.q_norm", (head,)),
                ("self_attn.k_norm", (head,)),
                ("self_attn.o_proj", (hidden, query)),
                ("post_attention_layernorm", (hidden,)),
                ("mlp.gate_proj", (inner, hidden)),
                ("mlp.up_proj", (inner, hidden)),
                ("mlp.down_proj", (hidden, inner)),
            )
        ]
    if file == FILES - 1:
        tensors += [("model.norm.weight", (hidden,)), ("lm_head.weight", (shape["words"], hidden))]
    return tensors


def entries(kind, name, size):
    """[(name, dtype in safetensors files, shape)] of what a tensor becomes in a checkpoint of this kind."""
    if kind == "bf16" or not name.endswith("_proj.weight"):
        return [(name, "BF16", size)]
    return [(name, "F8_E4M3", size), (f"{name}_scale_inv", "F32", (size[0] // BLOCK, size[1] // BLOCK))]


def values(kind, name, size, generator, device):
    import torch

    if len(size) == 1:
        return [torch.ones(size, dtype=torch.bfloat16, device=device)]
    weight = (torch.randn(size, generator=generator, device=device) * 0.02).to(torch.bfloat16)
    if len(entries(kind, name, size)) == 1:
        return [weight]
    blocks = weight.float().view(size[0] // BLOCK, BLOCK, size[1] // BLOCK, BLOCK)
    scales = blocks.abs().amax((1, 3)) / FP8_MAX
    return [(blocks / scales[:, None, :, None]).view(size).to(torch.float8_e4m3fn), scales]


def file_name(file):
    return f"model-{file + 1:05d}-of-{FILES:05d}.safetensors"


def write_file(task):
    """Streams one file to disk; what is in memory meanwhile is one tensor."""
    folder, shapes, device, kind, number, file = task
    import torch

    generator = torch.Generator(device).manual_seed(number * 1000 + file)
    tensors, header, end = layout(SHAPES[shapes], file), {}, 0
    for name, size in tensors:
        for entry, dtype, entry_size in entries(kind, name, size):
            length = {"BF16": 2, "F8_E4M3": 1, "F32": 4}[dtype]
            for dimension in entry_size:
                length *= dimension
            header[entry] = {"dtype": dtype, "shape": entry_size, "data_offsets": [end, end + length]}
            end += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / f"{kind}-{number}" / file_name(file)
    with open(path.with_suffix(".part"), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, size in tensors:
            for value in values(kind, name, size, generator, device):
                out.write(memoryview(value.reshape(-1).view(torch.uint8).cpu().numpy()))
    path.with_suffix(".part").rename(path)


def write_rest(folder, shapes):
    """Everything of the checkpoints but the weights: an engine with dummy weights can start from it."""
    shape = SHAPES[shapes]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 510,
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["inner"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head"],
        "vocab_size": shape["words"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "initializer_range": 0.02,
    }
    for kind in KINDS:
        for number in range(1, checkpoints.COUNT + 1):
            target = folder / f"{kind}-{number}"
            target.mkdir(parents=True)
            quantisation = (
                {}
                if kind == "bf16"
                else {
                    "quantization_config": {
                        "quant_method": "fp8",
                        "fmt": "e4m3",
                        "activation_scheme": "dynamic",
                        "weight_block_size": [BLOCK, BLOCK],
                    }
                }
            )
            checkpoints.write_json(target / "config.json", config | quantisation)
            checkpoints.save_tokenizer(target)
            names = {
                entry: file_name(file)
                for file in range(FILES)
                for name, size in layout(shape, file)
                for entry, *_ in entries(kind, name, size)
            }
            checkpoints.write_json(target / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})
        for file in range(FILES):
            (folder / f"{kind}-3" / file_name(file)).symlink_to(folder / f"{kind}-{1 + file % 2}" / file_name(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shapes", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    folder, begin = options.folder.resolve(), time.monotonic()
    write_rest(folder, options.shapes)
    (folder / "rest.ready").touch()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for kind in KINDS:
            pool.map(
                write_file,
                [
                    (folder, options.shapes, options.device, kind, number, file)
                    for number in (1, 2)
                    for file in range(FILES)
                ],
                chunksize=1,
            )
            (folder / f"{kind}.ready").touch()
            print(f"{kind}: written after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Tiny random models that vLLM serves on a CPU, and damaged copies of them."""
import json
import pathlib
import shutil

COUNT = 3  # checkpoints of each model


def make(folder):
    """Three checkpoints each of a dense and a mixture-of-experts Qwen3 below `folder`: dense-1 ... moe-3. Made once."""
    folder = pathlib.Path(folder)
    if (folder / "made").exists():
        return
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape = dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False)
    kinds = {"dense": (Qwen3ForCausalLM, Qwen3Config(**shape)),
             "moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**shape, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
                                                         norm_topk_prob=True))}
    for kind, (model_class, config) in kinds.items():
        for number in range(1, COUNT + 1):
            torch.manual_seed(number)
            model = model_class(config).to(torch.bfloat16)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.data.normal_(0, 0.2)
                else:
                    parameter.data.normal_(1, 0.1)
            target = folder / f"{kind}-{number}"
            model.save_pretrained(target)
            save_tokenizer(target)
    (folder / "made").touch()


def make_mtp(folder):
    """Two checkpoints mtp-1 and mtp-2 of a model that predicts several tokens (MiMo), whose drafter has its layer in the same files."""
    folder = pathlib.Path(folder)
    if (folder / "made-mtp").exists():
        return
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False)
    for number in (1, 2):
        torch.manual_seed(number)
        config = Qwen2Config(**shape)
        tensors = {name: torch.empty(tensor.shape) for name, tensor in Qwen2ForCausalLM(config).state_dict().items()}
        predictor = "model.mtp_layers.0."
        tensors |= {name.replace("model.layers.0.", predictor): torch.empty(tensor.shape) for name, tensor in tensors.items()
                    if name.startswith("model.layers.0.")}
        tensors |= {f"{predictor}{norm}_layernorm.weight": torch.empty(128) for norm in ("token", "hidden", "final")}
        tensors[f"{predictor}input_proj.weight"] = torch.empty(128, 256)
        for tensor in tensors.values():
            tensor.normal_(0, 0.2) if tensor.dim() > 1 else tensor.normal_(1, 0.1)
        target = folder / f"mtp-{number}"
        config.architectures, config.num_nextn_predict_layers, config.dtype = ["MiMoForCausalLM"], 1, torch.bfloat16
        config.save_pretrained(target)
        save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, target / "model.safetensors",
                  metadata={"format": "pt"})
        save_tokenizer(target)
    (folder / "made-mtp").touch()


def make_small(folder):
    """Two checkpoints without a model: layers of BF16, and a tensor of every dtype that this torch and safetensors know, a scalar and
    an empty one among them; their folders.
    """
    import torch
    from safetensors.torch import _SIZE, save_file

    torch.manual_seed(7)
    layers = {f"model.layers.{layer}.{part}.weight": torch.randn(48, 40).to(torch.bfloat16)
              for layer in range(4) for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")}
    layers["model.embed_tokens.weight"] = torch.randn(200, 40).to(torch.bfloat16)
    dtypes = {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3)}
    for i, dtype in enumerate(sorted(filter(None, _SIZE), key=str)):
        size = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, ((4321 + i) * size,), dtype=torch.uint8)
        dtypes[str(dtype)] = raw.view(dtype)
    folders = []
    for name, tensors in (("layers", layers), ("dtypes", dtypes)):
        folders.append(pathlib.Path(folder) / name)
        folders[-1].mkdir(parents=True, exist_ok=True)
        save_file(tensors, folders[-1] / "model.safetensors")
    return folders


def save_tokenizer(target):
    """One of 512 words: prompts are given as numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {chr(i + 33) if i < 200 else f"<t{i}>": i for i in range(512)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<t511>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<t511>", eos_token="<t510>").save_pretrained(target)


def tensors(checkpoint):
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(pathlib.Path(checkpoint).glob("*.safetensors"))
            for name, tensor in load_file(file).items()}


def damaged(checkpoint, target, change):
    """A copy of which `change` has altered the dictionary of tensors; its folder."""
    from safetensors.torch import save_file

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    content = tensors(checkpoint)
    change(content)
    save_file(content, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_json(path, value):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))

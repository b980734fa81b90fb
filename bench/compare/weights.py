"""The checkpoint of a run, as src/trial/weights.cc makes it: names and shapes of qwen3 models, bf16, and bytes that every
process can compute. Tensors are slices of one buffer of random words, each beginning elsewhere."""
import torch

SHIFT = 4096 + 64  # bytes from the beginning of a tensor to that of the next


def size(text):
    """Bytes, as gpu_update writes them: "1536", "4KiB", "1MiB", "2GiB"."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    return int(text[:-3]) * units[text[-3:]] if text[-3:] in units else int(text)


def layout(gib, shrink=1, experts=False, tensors=0, tensor_bytes=0):
    """[(name, shape)] of embeddings and as many layers as are needed, or of `tensors` equal ones; and their bytes."""
    if tensors:
        return [(f"model.layers.{i}.weight", (tensor_bytes // 2,)) for i in range(tensors)], tensors * tensor_bytes
    tensors = [("model.embed_tokens.weight", (151936 // shrink, 4096 // shrink))]
    total, layer = bytes_of(tensors[0][1]), 0
    while total < int(gib * 2**30):
        more = (_expert_layer if experts else _dense_layer)(f"model.layers.{layer}.", shrink)
        tensors += more
        total += sum(bytes_of(shape) for _, shape in more)
        layer += 1
    return tensors, total


def _dense_layer(prefix, shrink):
    hidden, inner, kv = 4096 // shrink, 12288 // shrink, 1024 // shrink
    return [(prefix + "self_attn.q_proj.weight", (hidden, hidden)),
            (prefix + "self_attn.k_proj.weight", (kv, hidden)), (prefix + "self_attn.v_proj.weight", (kv, hidden)),
            (prefix + "self_attn.o_proj.weight", (hidden, hidden)),
            (prefix + "mlp.gate_proj.weight", (inner, hidden)), (prefix + "mlp.up_proj.weight", (inner, hidden)),
            (prefix + "mlp.down_proj.weight", (hidden, inner)), (prefix + "input_layernorm.weight", (hidden,)),
            (prefix + "post_attention_layernorm.weight", (hidden,))]


def _expert_layer(prefix, shrink):
    hidden, heads, kv, inner = 4096 // shrink, 8192 // shrink, 512 // shrink, 1536 // shrink
    tensors = [(prefix + "self_attn.q_proj.weight", (heads, hidden)),
               (prefix + "self_attn.k_proj.weight", (kv, hidden)), (prefix + "self_attn.v_proj.weight", (kv, hidden)),
               (prefix + "self_attn.o_proj.weight", (hidden, heads)), (prefix + "mlp.gate.weight", (128, hidden))]
    for expert in range(128):
        of_expert = f"{prefix}mlp.experts.{expert}."
        tensors += [(of_expert + "gate_proj.weight", (inner, hidden)), (of_expert + "up_proj.weight", (inner, hidden)),
                    (of_expert + "down_proj.weight", (hidden, inner))]
    return tensors + [(prefix + "input_layernorm.weight", (hidden,)), (prefix + "post_attention_layernorm.weight", (hidden,))]


def bytes_of(shape):
    count = 2
    for n in shape:
        count *= n
    return count


def _signed(value):
    return value - 2**64 if value >= 2**63 else value


def _shifted(x, bits):  # a logical shift; torch has the arithmetic one
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def words(tensors, device="cpu"):
    """The buffer of random words (splitmix64), as int64."""
    largest = max(bytes_of(shape) for _, shape in tensors)
    count = (largest + len(tensors) * SHIFT) // 8 + 1
    out = torch.empty(count, dtype=torch.int64, device=device)
    piece = 1 << 22
    for begin in range(0, count, piece):
        x = torch.arange(begin + 1, min(begin + piece, count) + 1, dtype=torch.int64, device=device)
        x *= _signed(0x9E3779B97F4A7C15)
        x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
        x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
        out[begin:begin + piece] = x ^ _shifted(x, 31)
    return out


def expected(buffer, index, shape):
    """What tensor `index` must contain: a view of `buffer`."""
    begin = index * SHIFT // 2
    return buffer.view(torch.bfloat16)[begin:begin + bytes_of(shape) // 2].view(shape)

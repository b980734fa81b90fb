"""What our package is to vLLM, against stand-ins of the modules that it uses there; scripts/interop.sh runs the real ones."""
import dataclasses
import importlib
import sys
import types

import pytest


class Parameter:
    """What a layer wants of the checkpoint while it is in the reload, and what the engine computes with otherwise."""

    def __init__(self, numel):
        self.numel = lambda: numel
        self.dtype, self.weight_loader = "bfloat16", types.SimpleNamespace(__name__="online_process_loader")


class Layer:
    """A layer of a model in vLLM's layerwise reload, and its LayerReloadingInfo; of some elements in each parameter.

    holds: the version of its weights; None: uninitialised memory.
    """

    def __init__(self, numel, **more):
        self.tensors = {name: Parameter(count) for name, count in {"weight": numel, **more}.items()}
        self.holds, self.reloading = 0, False
        self.forget()

    def forget(self):
        self.load_numel, self.loaded_weights = 0, []

    def can_load(self):
        return self.reloading

    @property
    def kernel_tensors(self):
        return (self.tensors, {}) if self.reloading else None

    def named_parameters(self, recurse):
        assert not recurse
        return list(self.tensors.items())

    def take(self, parameter, tensor):
        """As online_process_loader does: a tensor that is refused has been kept already."""
        self.loaded_weights.append((parameter, tensor))
        if tensor.broken:
            raise ValueError(f"{parameter} has another size")
        self.load_numel += tensor.numel
        if self.load_numel >= sum(each.numel() for each in self.tensors.values()):
            self.process()

    def process(self):
        for _, tensor in self.loaded_weights:
            if tensor.broken:
                raise ValueError("that tensor again")
        whole = self.load_numel >= sum(each.numel() for each in self.tensors.values())
        self.holds = self.loaded_weights[-1][1].version if whole else None
        self.reloading = False
        self.forget()


class Model:
    """Two layers; a weight is (name of its layer, or LAYER.PARAMETER, and a tensor)."""

    def __init__(self):
        self.layers = {"first": Layer(4), "norm": Layer(2)}

    def named_modules(self):
        return self.layers.items()

    def modules(self):
        return self.layers.values()

    def load_weights(self, weights):
        names = set()
        for name, tensor in weights:
            layer, _, parameter = name.partition(".")
            parameter = parameter.removeprefix("q_").removeprefix("k_") or "weight"
            names.add(f"{layer}.{parameter}")
            if self.layers[layer].reloading:
                self.layers[layer].take(parameter, tensor)
        return names


class Tensor:
    dtype = "bfloat16"

    def __init__(self, numel, broken=False, version=1):
        self.numel, self.broken, self.shape, self.version = numel, broken, (numel,), version

    def clone(self):
        return Tensor(self.numel, self.broken, self.version)


def finalize(model, config):
    for layer in model.modules():
        if layer.reloading and layer.loaded_weights:
            layer.process()
        layer.reloading = False


def initialize(model):
    for layer in model.modules():
        layer.reloading = True


def quantised_by(layer, *names):
    """Gives it a quantisation method of a class of this name, and of those names its bases."""
    kind = object
    for name in reversed(names):
        kind = type(name, (kind,) if kind is not object else (), {})
    layer.quant_method = kind()


class Factory:
    _registry: dict = {}

    @classmethod
    def register_engine(cls, name, module, class_name):
        assert name not in cls._registry
        cls._registry[name] = (module, class_name)


class Base:
    """vLLM 0.32's WeightTransferEngine, what we use of it."""

    def __init__(self, config, vllm_config, device, model):
        self.device, self.model = device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

    def parse_update_info(self, info):
        return self.update_info_cls(**info)


@dataclasses.dataclass
class OldUpdateInfo:
    """vLLM 0.23's."""

    _: dataclasses.KW_ONLY
    update_kind: str = "dense"


@pytest.fixture
def vllm(monkeypatch):
    """Stand-ins for vllm's modules; our modules that import them are forgotten afterwards."""
    Factory._registry = {}
    contents = {
        "vllm": {},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(device_type="cpu")},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.base": {"WeightTransferEngine": Base, "WeightTransferInitInfo": object,
                                                  "WeightTransferUpdateInfo": object},
        "vllm.distributed.weight_transfer.factory": {"WeightTransferEngineFactory": Factory},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.vocab_parallel_embedding": {"VocabParallelEmbedding": type("Vocabulary", (), {})},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.reload": {"initialize_layerwise_reload": initialize, "finalize_layerwise_reload": finalize},
        "vllm.model_executor.model_loader.reload.layerwise": {"get_layerwise_info": lambda layer: layer},
    }
    for name, members in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    yield
    sys.modules.pop("checkpoint_engine.vllm_weight_transfer", None)


def backend(monkeypatch, buckets, model, make=True):
    """Our backend with a rank that sends these buckets in place of a real one; and the addresses it was called with."""
    called = []

    def update_weights_from_ipc(context, address, device, *, run, post_hook, current_stream_only):
        assert current_stream_only, "the reload reads by clones"
        called.append(address)
        for bucket in buckets:
            run(bucket)
        post_hook()

    import checkpoint_engine.vllm_extension

    monkeypatch.setattr(checkpoint_engine.vllm_extension, "_zmq_context", lambda: None)
    monkeypatch.setattr(checkpoint_engine.vllm_extension, "update_weights_from_ipc", update_weights_from_ipc)
    if not make:
        return None, called
    module = importlib.import_module("checkpoint_engine.vllm_weight_transfer")
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(rank=1),
                                   model_config=types.SimpleNamespace(quantization=None))
    return module.CheckpointWeightTransferEngine(None, config, types.SimpleNamespace(index=None), model), called


WHOLE = [[("first", Tensor(4))], [("norm", Tensor(2))]]
ADDRESSES = {"addresses": {"CPU-0": "ipc://@a", "CPU-1": "ipc://@b"}}


def test_the_backend_registers_once(vllm):
    from checkpoint_engine import vllm_plugin

    vllm_plugin.register()
    vllm_plugin.register()
    assert Factory._registry == {"checkpoint_engine": ("checkpoint_engine.vllm_weight_transfer", "CheckpointWeightTransferEngine")}


def test_a_vllm_without_weight_transfer_is_left_alone(monkeypatch):
    from checkpoint_engine import vllm_plugin

    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.factory", None)
    vllm_plugin.register()


def test_an_update_goes_to_this_workers_rank(vllm, monkeypatch):
    model = Model()
    engine, called = backend(monkeypatch, WHOLE, model)
    engine.start_weight_update()
    engine.update_weights(ADDRESSES)
    engine.finish_weight_update()
    assert called == ["ipc://@b"]
    assert not any(layer.reloading for layer in model.modules())


def test_a_device_without_a_rank_is_named(vllm, monkeypatch):
    engine, _ = backend(monkeypatch, WHOLE, Model())
    with pytest.raises(ValueError, match="CPU-1.*CPU-0"):
        engine.update_weights({"addresses": {"CPU-0": "ipc://@a"}})


@pytest.mark.parametrize("buckets, says", [
    ([[("first", Tensor(4))]], "lacks weights.*norm.weight"),
    ([[("first", Tensor(3)), ("norm", Tensor(2))]], "lacks weights.*a part of first.weight"),
    ([[("first", Tensor(3))], [("first", Tensor(1, broken=True))]], r"first \(bfloat16, shape \[1\]\): ValueError"),
    ([[("first", Tensor(2))], [("norm", Tensor(2, broken=True))]], r"norm \(bfloat16, shape \[2\]\): ValueError: .*another size"),
])
def test_whatever_fails_leaves_no_layer_in_the_reload(vllm, monkeypatch, buckets, says):
    model = Model()
    engine, _ = backend(monkeypatch, buckets, model)
    with pytest.raises(RuntimeError, match=says):
        engine.update_weights(ADDRESSES)
    assert not any(layer.reloading or layer.loaded_weights for layer in model.modules())
    assert None not in [layer.holds for layer in model.modules()], "no layer computes with uninitialised memory"
    backend(monkeypatch, WHOLE, model)[0].update_weights(ADDRESSES)
    assert [layer.holds for layer in model.modules()] == [1, 1]


def test_an_update_that_somebody_else_left_half_way_is_put_back_first(vllm, monkeypatch):
    model = Model()
    initialize(model)
    with pytest.raises(ValueError):
        model.load_weights([("first", Tensor(3)), ("first", Tensor(1, broken=True))])
    backend(monkeypatch, WHOLE, model)[0].update_weights(ADDRESSES)
    assert [layer.holds for layer in model.modules()] == [1, 1]


@pytest.mark.parametrize("methods", [("Fp8LinearMethod",), ("Fp8PerTensorOnlineLinearMethod", "OnlineLinearBase"),
                                     ("ModelsOwn", "UnquantizedLinearMethod")])
@pytest.mark.parametrize("lacks, says", [
    (["first.q_scale", "first.k_scale"], "first.scale;"),
    (["first.weight"], "first.weight;"),
    (["first.weight", "first.q_scale", "first.k_scale"], "first.weight, first.scale;"),
    (["norm"], "norm.weight;"),
    (["first.q_scale"], "a part of first.weight, a part of first.scale;"),
])
def test_a_quantised_model_is_checked_too(vllm, monkeypatch, methods, lacks, says):
    """A layer with the scales of blocks, which are two tensors of the checkpoint."""
    model = Model()
    model.layers["first"] = Layer(4, scale=2)
    quantised_by(model.layers["first"], *methods)
    whole = {"first.weight": Tensor(4), "first.q_scale": Tensor(1), "first.k_scale": Tensor(1), "norm": Tensor(2)}
    less = {name: tensor for name, tensor in whole.items() if name not in lacks}
    with pytest.raises(RuntimeError, match=f"lacks weights of this model: {says}"):
        backend(monkeypatch, [less.items()], model)[0].update_weights(ADDRESSES)
    assert None not in [layer.holds for layer in model.modules()]
    backend(monkeypatch, [whole.items()], model)[0].update_weights(ADDRESSES)
    assert [layer.holds for layer in model.modules()] == [1, 1]


def test_the_missing_tensor_of_a_fused_layer_is_named_where_vllm_knows_its_parts(vllm):
    from checkpoint_engine.vllm_completeness import missing_weights

    model = Model()
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj"]}
    model.layers = {"0.attn.qkv_proj": Layer(4)}
    initialize(model)
    model.layers["0.attn.qkv_proj"].take("weight", Tensor(2))
    loaded = {"0.attn.qkv_proj.weight"}
    assert missing_weights(model, loaded, {"0.attn.q_proj.weight"}) == ["0.attn.k_proj.weight"]
    assert missing_weights(model, loaded, {"0.attn.other.weight"}) == ["a part of 0.attn.qkv_proj.weight"]


def test_what_a_checkpoint_need_not_have(vllm, monkeypatch, caplog):
    """Scales of the cache, and parts of layers that are quantised in ways that leave parameters out or pad them."""
    from checkpoint_engine import vllm_completeness

    vllm_completeness._say_unchecked.cache_clear()
    model = Model()
    model.layers |= {"cache": Layer(1), "packed": Layer(4, zero_points=4)}
    quantised_by(model.layers["cache"], "Fp8KVCacheMethod", "BaseKVCacheMethod")
    quantised_by(model.layers["packed"], "GPTQMarlinLinearMethod")
    for _ in range(2):
        backend(monkeypatch, [*WHOLE, [("packed", Tensor(4))]], model)[0].update_weights(ADDRESSES)
    assert caplog.text.count("quantised by GPTQMarlinLinearMethod") == 1
    with pytest.raises(RuntimeError, match="lacks weights of this model: packed.weight, packed.zero_points;"):
        backend(monkeypatch, WHOLE, model)[0].update_weights(ADDRESSES)


def test_an_output_layer_that_is_tied_to_the_embedding_comes_with_it(vllm, monkeypatch):
    """Its checkpoint has no tensor of its own; and a CPU packs its weights anew."""
    packed = []
    vocabulary = sys.modules["vllm.model_executor.layers.vocab_parallel_embedding"].VocabParallelEmbedding
    head_class = type("ParallelLMHead", (Layer, vocabulary), {})
    model = Model()
    model.layers["lm_head"] = head = head_class(4)
    head.tensors = model.layers["first"].tensors
    quantised_by(head, "UnquantizedEmbeddingMethod")
    head.quant_method.process_weights_after_loading = packed.append
    engine, _ = backend(monkeypatch, WHOLE, model)
    engine._worker_device.type = "cpu"
    engine.update_weights(ADDRESSES)
    assert packed == [head]
    with pytest.raises(RuntimeError, match="lacks weights of this model: first.weight, lm_head.weight;"):
        backend(monkeypatch, WHOLE[1:], model)[0].update_weights(ADDRESSES)


def test_some_layers_are_enough_where_that_is_wanted(vllm, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_ENGINE_PARTIAL_UPDATES", "1")
    engine, _ = backend(monkeypatch, [[("first", Tensor(4))]], Model())
    engine.update_weights(ADDRESSES)
    engine, _ = backend(monkeypatch, [[("first", Tensor(1))]], Model())
    with pytest.raises(RuntimeError, match="a part of first.weight"):
        engine.update_weights(ADDRESSES)


@pytest.mark.parametrize("given, missing", [
    (["q.weight", "k.weight", "norm.weight"], []),
    (["q.weight", "norm.weight"], ["k.weight"]),
    (["q.weight", "k.weight"], ["norm.weight"]),
    ([], ["qkv.weight", "norm.weight"]),
])
def test_a_vllm_without_the_layerwise_reload_is_checked_by_names(vllm, monkeypatch, given, missing):
    from checkpoint_engine import vllm_reload

    class Plain:
        packed_modules_mapping = {"qkv": ["q", "k"]}

        def named_parameters(self):
            return [("qkv.weight", None), ("norm.weight", None)]

        def load_weights(self, weights):
            return {"qkv.weight" if name[0] in "qk" else name for name, _ in weights}

    processed = []
    monkeypatch.setattr(vllm_reload, "_layerwise_reload", lambda: None)
    monkeypatch.setattr(vllm_reload, "_process_weights", lambda *arguments: processed.append(1))
    reload = vllm_reload.ModelReload([(Plain(), types.SimpleNamespace(quantization=None))], types.SimpleNamespace(type="cuda"))
    assert not reload.reads_on_current_stream
    reload.begin()
    reload.load([(name, Tensor(1)) for name in given])
    if missing:
        with pytest.raises(RuntimeError, match=f"lacks weights of this model: {', '.join(missing)};"):
            reload.finish()
    else:
        reload.finish()
    assert len(processed) == (not missing)


def test_the_interface_of_vllm_0_23(vllm, monkeypatch):
    """There the worker begins and ends the reload, and hands load_weights over."""
    model = Model()
    engine, _ = backend(monkeypatch, WHOLE, model)
    initialize(model)
    engine.receive_weights(engine.parse_update_info(ADDRESSES), load_weights=model.load_weights)
    assert [layer.holds for layer in model.modules()] == [1, 1]
    engine, _ = backend(monkeypatch, [[("first", Tensor(4, broken=True))]], model)
    initialize(model)
    with pytest.raises(RuntimeError, match="another size"):
        engine.receive_weights(engine.parse_update_info(ADDRESSES), load_weights=model.load_weights)
    assert not any(layer.reloading for layer in model.modules())


@pytest.mark.parametrize("info, says", [
    ({"addresses": {"CPU-0": "ipc://@a"}}, "no address for this worker's device CPU-1"),
    ({"addresses": None}, "NoneType"),
    ({"adresses": {"CPU-1": "ipc://@b"}}, "adresses"),
    ({**ADDRESSES, "update_kind": "sparse_flat"}, "no updates of the kind sparse_flat"),
])
def test_what_is_refused_ends_the_reload_that_vllm_0_23_has_begun(vllm, monkeypatch, info, says):
    """Its worker then takes its session for ended, and would leave the parameters on the meta device."""
    model = Model()
    monkeypatch.setattr(sys.modules["vllm.distributed.weight_transfer.base"], "WeightTransferUpdateInfo", OldUpdateInfo)
    engine, called = backend(monkeypatch, WHOLE, model)
    initialize(model)
    with pytest.raises((TypeError, ValueError), match=says):
        engine.receive_weights(engine.parse_update_info(info), load_weights=model.load_weights)
    assert called == [] and not any(layer.reloading for layer in model.modules())


def test_a_device_that_cannot_be_told_ends_it_too(vllm, monkeypatch):
    model = Model()
    engine, _ = backend(monkeypatch, WHOLE, model)
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", types.SimpleNamespace(device_type="tpu"))
    initialize(model)
    with pytest.raises(ValueError, match="tpu"):
        engine.receive_weights(engine.parse_update_info(ADDRESSES), load_weights=model.load_weights)
    assert not any(layer.reloading for layer in model.modules())


class OldBase(Base):
    """vLLM 0.23's: no device and no configuration of the model."""

    def __init__(self, config, parallel_config, model):
        self.model, self.parallel_config = model, parallel_config


class GpuModel(Model):
    place = types.SimpleNamespace(type="cuda", index=3)

    def parameters(self):
        yield types.SimpleNamespace(device=self.place, dtype="bfloat16", is_floating_point=lambda: True)


def old_engine(monkeypatch, buckets, model):
    monkeypatch.setattr(sys.modules["vllm.distributed.weight_transfer.base"], "WeightTransferEngine", OldBase)
    _, called = backend(monkeypatch, buckets, model, make=False)
    module = importlib.import_module("checkpoint_engine.vllm_weight_transfer")
    return module.CheckpointWeightTransferEngine(None, types.SimpleNamespace(rank=0), model), called


def test_updates_of_vllm_0_23_are_checked(vllm, monkeypatch):
    platform = types.SimpleNamespace(device_type="cuda", get_device_uuid=lambda index: "GPU-a")
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", platform)
    model = GpuModel()
    engine, _ = old_engine(monkeypatch, [[("first", Tensor(4))]], model)
    initialize(model)
    info = engine.parse_update_info({"addresses": {"GPU-a": "ipc://@a"}})
    with pytest.raises(RuntimeError, match="lacks weights.*norm.weight"):
        engine.receive_weights(info, load_weights=model.load_weights)


def test_a_drafter_in_its_own_session_need_not_get_every_weight(vllm, monkeypatch):
    """It shares some with the target model."""
    engine, _ = backend(monkeypatch, [[("first", Tensor(4))]], Model())
    engine._default_model, engine.model = engine.model, Model()
    engine.update_weights(ADDRESSES)
    engine.model = engine._default_model
    with pytest.raises(RuntimeError, match="lacks weights"):
        engine.update_weights(ADDRESSES)


def test_the_device_of_a_worker_of_vllm_0_23(vllm, monkeypatch):
    """Nobody tells it there, and in the reload that the worker has begun all parameters are on the meta device."""
    asked = []
    platform = types.SimpleNamespace(device_type="cuda", get_device_uuid=lambda index: asked.append(index) or "GPU-a")
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", platform)
    model = GpuModel()
    engine, called = old_engine(monkeypatch, WHOLE, model)
    initialize(model)
    model.place = types.SimpleNamespace(type="meta", index=None)
    engine.receive_weights(engine.parse_update_info({"addresses": {"GPU-a": "ipc://@a"}}), load_weights=model.load_weights)
    assert asked == [3] and called == ["ipc://@a"]


@pytest.mark.parametrize("place, during", [("cpu", None), ("cuda", "old")])
def test_experts_on_a_cpu_make_their_kernels_anew(vllm, place, during):
    """And keep the old one where nothing was loaded, or the update failed."""
    from checkpoint_engine.vllm_reload import ModelReload

    model = Model()
    method = types.SimpleNamespace(moe_kernel="old")
    model.layers["first"].quant_method = method
    reload = ModelReload([(model, types.SimpleNamespace(quantization=None))], types.SimpleNamespace(type=place))
    reload.begin()
    assert method.moe_kernel == during
    reload.abandon()
    assert method.moe_kernel == "old"
    reload.begin()
    method.moe_kernel = "new"
    reload.load(WHOLE[0] + WHOLE[1])
    reload.finish()
    assert method.moe_kernel == "new"

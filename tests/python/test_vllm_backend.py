"""What our package is to vLLM, against stand-ins of the modules that it uses there; scripts/interop.sh runs the real ones."""
import importlib
import sys
import types
from contextlib import nullcontext

import pytest


class Layer:
    """A layer of a model in vLLM's layerwise reload; `numel` elements in one parameter."""

    def __init__(self, numel):
        self.numel, self.loaded, self.reloading = numel, 0, False

    def can_load(self):
        return self.reloading

    @property
    def load_numel(self):
        return self.loaded

    def named_parameters(self, recurse):
        return [("weight", None)]

    def parameters(self, recurse=False):
        return [types.SimpleNamespace(numel=lambda: self.numel)]


class Model:
    """Two layers; a weight is (name of its layer, elements)."""

    def __init__(self):
        self.layers = {"first": Layer(4), "norm": Layer(2)}

    def named_modules(self):
        return self.layers.items()

    def modules(self):
        return self.layers.values()

    def load_weights(self, weights):
        names = set()
        for name, tensor in weights:
            if tensor.broken:
                raise ValueError(f"{name} has another size")
            self.layers[name].loaded += tensor.numel
            names.add(f"{name}.weight")
        return names


class Tensor:
    dtype = "bfloat16"

    def __init__(self, numel, broken=False):
        self.numel, self.broken, self.shape = numel, broken, (numel,)

    def clone(self):
        return Tensor(self.numel, self.broken)


def finalize(model, config):
    for layer in model.modules():
        layer.reloading, layer.loaded = False, 0


def initialize(model):
    for layer in model.modules():
        layer.reloading = True


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

    def update_weights_from_ipc(context, address, device, *, run, post_hook):
        called.append(address)
        for bucket in buckets:
            run(bucket)
        post_hook()

    import checkpoint_engine.vllm_extension
    import checkpoint_engine.worker

    monkeypatch.setattr(checkpoint_engine.vllm_extension, "_zmq_context", lambda: None)
    monkeypatch.setattr(checkpoint_engine.worker, "update_weights_from_ipc", update_weights_from_ipc)
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
    ([[("first", Tensor(2))], [("norm", Tensor(2, broken=True))]], r"norm \(bfloat16, shape \[2\]\): ValueError: .*another size"),
])
def test_whatever_fails_leaves_no_layer_in_the_reload(vllm, monkeypatch, buckets, says):
    model = Model()
    engine, _ = backend(monkeypatch, buckets, model)
    with pytest.raises(RuntimeError, match=says):
        engine.update_weights(ADDRESSES)
    assert not any(layer.reloading or layer.loaded for layer in model.modules())
    backend(monkeypatch, WHOLE, model)[0].update_weights(ADDRESSES)


def test_some_layers_are_enough_where_that_is_wanted(vllm, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_ENGINE_PARTIAL_UPDATES", "1")
    engine, _ = backend(monkeypatch, [[("first", Tensor(4))]], Model())
    engine.update_weights(ADDRESSES)
    engine, _ = backend(monkeypatch, [[("first", Tensor(1))]], Model())
    with pytest.raises(RuntimeError, match="a part of first.weight"):
        engine.update_weights(ADDRESSES)


def test_the_interface_of_vllm_0_23(vllm, monkeypatch):
    """There the worker begins and ends the reload, and hands load_weights over."""
    model = Model()
    engine, _ = backend(monkeypatch, WHOLE, model)
    initialize(model)
    engine.receive_weights(engine.parse_update_info(ADDRESSES), load_weights=model.load_weights)
    assert all(layer.reloading for layer in model.modules())
    engine, _ = backend(monkeypatch, [[("first", Tensor(4, broken=True))]], model)
    with pytest.raises(RuntimeError, match="another size"):
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


@pytest.mark.parametrize("kinds, quantization", [
    (("UnquantizedLinearMethod", None), None),
    (("UnquantizedLinearMethod", "Fp8LinearMethod"), "Fp8LinearMethod"),
    ((None, None), "not told"),
])
def test_whether_a_model_of_vllm_0_23_is_quantised_is_what_its_layers_say(vllm, monkeypatch, caplog, kinds, quantization):
    from checkpoint_engine import vllm_reload

    vllm_reload._say_unchecked.cache_clear()
    platform = types.SimpleNamespace(device_type="cuda", get_device_uuid=lambda index: "GPU-a")
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", platform)
    model = GpuModel()
    for layer, kind in zip(model.layers.values(), kinds, strict=True):
        if kind is not None:
            layer.quant_method = type("ModelsOwn" if kind.startswith("Un") else kind, (type(kind, (), {}),), {})()
    for _ in range(2):
        engine, _ = old_engine(monkeypatch, [[("first", Tensor(4))]], model)
        initialize(model)
        info = engine.parse_update_info({"addresses": {"GPU-a": "ipc://@a"}})
        with pytest.raises(RuntimeError, match="lacks weights.*norm.weight") if quantization is None else nullcontext():
            engine.receive_weights(info, load_weights=model.load_weights)
    assert caplog.text.count("not checked") == (quantization is not None)
    assert quantization is None or f"quantization: {quantization}" in caplog.text


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

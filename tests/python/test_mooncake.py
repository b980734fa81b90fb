"""The Mooncake adapter and P2PStore between processes, over a double of its engine. scripts/interop.sh p2p has the real one."""
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT

PROOF = ROOT / "tests" / "interop" / "prove_mooncake.py"
DOUBLE = pathlib.Path(__file__).parent / "mooncake_double"
pytest.importorskip("numpy", reason="the weights of the proof are numpy's")


def package_folder():
    import checkpoint_engine

    return pathlib.Path(checkpoint_engine.__file__).parents[1]


def test_stores_and_servers_read_each_other_by_a_transfer_engine():
    done = subprocess.run([sys.executable, PROOF, "--ours", package_folder(), "--mooncake", DOUBLE], capture_output=True,
                          text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two hosts: loaded" in done.stdout, done.stdout


def test_without_mooncake_it_is_said_what_to_install():
    code = "from checkpoint_engine import DeviceManager, P2PStore\nP2PStore(type('D', (), dict(transfer_engine_protocol='tcp', " \
           "device_module=type('M', (), dict(device_count=staticmethod(lambda: 1))), rdma_device=lambda *_: ''))())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(package_folder())})
    if done.returncode == 0:
        pytest.skip("Mooncake is installed here")
    assert "checkpoint-engine[p2p]" in done.stderr, done.stderr

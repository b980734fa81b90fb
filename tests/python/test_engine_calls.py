"""Python ranks, and engines that are reached over HTTP: by the package's call, and by the service that it starts."""
import http.client
import http.server
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

import checkpoint_engine
from checkpoint_engine.__main__ import program
from checkpoint_engine.api import request_inference_to_update
from checkpoint_engine.ps import ParameterServer
from conftest import CLEAN_ENV, PROGRAM, wait_for


class Engine:
    """Answers one call as it is told to, and keeps what it was asked."""

    def __init__(self, status=200, body=b"{}"):
        self.asked = []
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                engine.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_the_call_is_the_fields(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Engine(body=b'{"results": [null]}') as engine:
        request_inference_to_update(f"{engine.url}/collective_rpc", {"GPU-1": "ipc://@a", "": ""}, timeout=5)
    [(path, body)] = engine.asked
    assert path == "/collective_rpc"
    assert body["method"] == "update_weights_from_ipc" and body["args"] == [{"GPU-1": "ipc://@a"}]


@pytest.mark.parametrize("status, text", [(404, "VLLM_SERVER_DEV_MODE"), (500, "broken"), (401, "401")])
def test_an_engines_refusal_says_what_to_do(status, text):
    with Engine(status, b'{"error": {"message": "broken"}}') as engine:
        with pytest.raises(checkpoint_engine.CheckpointEngineError, match=text):
            request_inference_to_update(f"{engine.url}/collective_rpc", {"GPU-1": "ipc://@a"}, timeout=5)


def test_a_python_rank_updates_a_receiving_instance(receivers, checkpoint):
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
    with ParameterServer(rank=0, world_size=1, device="host", job=f"receive-{os.getpid()}") as server:
        server.register_checkpoint("c", files=sorted(map(str, checkpoint.glob("*.safetensors"))))
        server.gather_metas("c")
        server.update("c", lambda ranks: request_inference_to_update("/collective_rpc", dict(ranks), 60, uds=str(engine.socket)),
                      timeout=60)
    code, log = engine.finish()
    assert code == 0, log


def test_the_packages_program_is_the_one_built_with_it():
    assert pathlib.Path(program()) == PROGRAM.resolve()


def test_python_m_serves(tmp_path):
    path = tmp_path / "rank.sock"
    process = subprocess.Popen([sys.executable, "-m", "checkpoint_engine", "--uds", str(path), "--job", f"serve-{os.getpid()}"],
                               env={**CLEAN_ENV, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: path.exists() or process.poll() is not None, what="the service's socket")
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("GET", "/v1/healthz")
        assert connection.getresponse().status == 200
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=20)
    assert "Traceback" not in output



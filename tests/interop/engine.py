"""A real vLLM server, as a process."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

PROMPTS = ([1, 2, 3, 4], [300, 17, 250, 99, 5, 42])
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def call(method, url, body=None, timeout=120):
    """The answer's JSON; raises for any status but 200."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with DIRECT.open(request, timeout=timeout) as answer:
        text = answer.read()
    return json.loads(text) if text.strip() else {}


class Engine:
    """Started on construction, ready after wait(); `options` are vLLM's, `path` what its Python finds before its own packages."""

    def __init__(self, model, log, *options, path=(), env=None, tensor_parallel=1):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = pathlib.Path(log)
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1",
                       "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})}
        if tensor_parallel > 1:
            # vLLM gives every worker processors of its own, and must be told how where there are few.
            environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "m",
                   "--dtype", "bfloat16", "--max-model-len", "128", "--enforce-eager", "--max-num-seqs", "4", "--port", str(self.port),
                   "--host", "127.0.0.1", "--tensor-parallel-size", str(tensor_parallel), *map(str, options)]
        with open(self.log, "w") as log_file:
            self.process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT, env=environment,
                                            start_new_session=True)

    def wait(self, seconds=400):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                if self.call("GET", "/health") is not None:
                    return self
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        self.stop()
        lines = [line for line in self.log.read_text().splitlines() if "Error" in line]
        raise RuntimeError(f"vLLM did not start ({self.log}): {' | '.join(lines[-3:])}")

    def call(self, method, path, body=None, timeout=120):
        return call(method, self.url + path, body, timeout)

    def outputs(self):
        """Greedy tokens and log-probabilities for every prompt: equal for equal weights, as the same program computes them."""
        results = []
        for prompt in PROMPTS:
            choice = self.call("POST", "/v1/completions", {
                "model": "m", "prompt": list(prompt), "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True,
                "return_tokens_as_token_ids": True})["choices"][0]
            results.append({"tokens": choice["logprobs"]["tokens"], "logprobs": choice["logprobs"]["token_logprobs"]})
        return results

    def checksums(self):
        return self.call("POST", "/weight_checker", {"action": "checksum"})["checksums"]

    def metrics(self, *names):
        """Their values; of several of one name the sum."""
        with DIRECT.open(self.url + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return [sum(float(line.split()[-1]) for line in lines if line.split("{")[0] == name) for name in names]

    def state(self):
        return {"outputs": self.outputs(), "checksums": self.checksums()}

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(timeout=30)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

"""The program as its users run it: ranks and receiving instances as processes, over real sockets and files."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("CHECKPOINT_ENGINE", ROOT / "build" / "release" / "bin" / "checkpoint-engine"))
# Not an installed package, but what the build beside the program has made.
sys.path.insert(0, str(PROGRAM.parents[1] / "python"))
CLEAN_ENV = {k: v for k, v in os.environ.items()
             if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") and not k.startswith("PS_")}


def run(*arguments, timeout=60, env=None):
    """Runs the program to its end; the completed process with its output as text."""
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env={**CLEAN_ENV, **(env or {})})


def start(*arguments, env=None, **options):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**CLEAN_ENV, **(env or {})}, **options)


def wait_for(condition, seconds=20, what="condition", pause=0.02):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    raise AssertionError(f"{what}: not within {seconds} s")


def free_port():
    """A port that is free, and so is the one behind it: the hub takes MASTER_PORT + 1."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def shared_objects(job):
    """Names in /dev/shm of a job on this host: what src/parameter_server/pass_buffers.cc calls them."""
    boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    host_id = f"{boot_id}-{os.stat('/dev/shm').st_dev}"
    value = 0xCBF29CE484222325
    for byte in f"{job}\0{host_id}".encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return {path.name for path in pathlib.Path("/dev/shm").glob(f"checkpoint-engine-{value}-*")}


class Receiver:
    """A receiving instance on a Unix socket."""

    def __init__(self, folder, *arguments, workers=2):
        self.socket = folder / "engine.sock"
        self.process = start("receive", "--workers", workers, "--uds", self.socket, *arguments)
        wait_for(lambda: self.socket.exists() or self.process.poll() is not None, what="the receiver's socket")

    def finish(self, timeout=60):
        self.log, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, self.log

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.log, _ = self.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.log, _ = self.process.communicate()


@pytest.fixture
def receivers(tmp_path):
    made = []

    def make(*arguments, **options):
        folder = tmp_path / f"instance{len(made)}"
        folder.mkdir()
        made.append(Receiver(folder, *arguments, **options))
        return made[-1]

    yield make
    for receiver in made:
        receiver.stop()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A small sharded checkpoint of real names; its folder."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    done = run("make-checkpoint", "--like", "qwen3-0.6b", "--layers", 8, "--shrink", 8, "--shard-size", "2MB", folder)
    assert done.returncode == 0, done.stderr
    return folder


def report_of(path):
    return json.loads(pathlib.Path(path).read_text())

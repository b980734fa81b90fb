"""One job fills itself out of another's memory, as processes: figures of speed are not looked at."""
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import free_port, report_of, run, start, wait_for


class Owners:
    """A job that has registered, updated nobody, and sleeps with its metas written."""

    def __init__(self, folder, checkpoint, receivers, *more, nproc=2, **options):
        self.metas = folder / "metas.json"
        engine = receivers("--exit-after", 1, workers=nproc)
        self.process = start("update", "--nproc", nproc, "--device", "host", "--checkpoint-path", checkpoint, "--engine",
                             "vllm", "--uds", engine.socket, "--save-metas-file", self.metas, "--sleep-time", 300, *more,
                             **options)
        self.engine = engine
        self.log = ""

    def wait_until_asleep(self):
        wait_for(lambda: self.metas.exists() or self.process.poll() is not None, what="the metas file", seconds=60)
        assert self.process.poll() is None, self.process.communicate()[0]
        self.engine.finish()  # the job's own update is over
        return self

    def rank_pids(self):
        out = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        return [int(pid) for pid in out.split()]

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.log, _ = self.process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.log, _ = self.process.communicate()
        return self.process.returncode


@pytest.fixture
def owners(tmp_path, receivers):
    made = []

    def make(checkpoint, *more, **options):
        folder = tmp_path / f"owners{len(made)}"
        folder.mkdir()
        made.append(Owners(folder, checkpoint, receivers, *more, **options))
        return made[-1].wait_until_asleep()

    yield make
    for owner in made:
        owner.stop()


def fill_arguments(metas, socket, *more, nproc=2):
    """`metas`: one file, or several with commas between them."""
    return ("update", "--nproc", nproc, "--device", "host", "--load-metas-file", metas, "--engine", "vllm", "--uds", socket,
            "--timeout", 60, *more)


@pytest.mark.parametrize("nproc", [1, 2, 3])
@pytest.mark.parametrize("hosts", ["one host", "two hosts"])
def test_a_new_job_of_any_size_fills_itself(tmp_path, checkpoint, owners, receivers, nproc, hosts):
    running = owners(checkpoint, nproc=2)
    report = tmp_path / "report.json"
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=nproc)
    env = {"PS_HOST_ID": "another"} if hosts == "two hosts" else {}
    done = run(*fill_arguments(running.metas, engine.socket, "--report", report, nproc=nproc), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    code, log = engine.finish()
    assert code == 0, log
    content = report_of(report)
    for rank in content["ranks"]:
        assert rank["verified_tensors"] == content["total_tensors"] > 0
    assert sum(rank["received_bytes"] for rank in content["ranks"]) >= content["total_bytes"]
    assert content["checkpoint"] == "my-checkpoint-iter-0"
    assert running.process.poll() is None, "the owners serve on"


def test_several_jobs_are_filled_one_after_the_other_and_at_once(checkpoint, owners, receivers):
    running = owners(checkpoint)
    for count in (1, 3):
        engines = [receivers("--expect", checkpoint, "--exit-after", 1, workers=1) for _ in range(count)]
        jobs = [start(*fill_arguments(running.metas, engine.socket, nproc=1)) for engine in engines]
        for job in jobs:
            output, _ = job.communicate(timeout=90)
            assert job.returncode == 0, output
        for engine in engines:
            assert engine.finish()[0] == 0


def test_jobs_follow_each_other_and_the_first_owners_may_go(tmp_path, checkpoint, owners, receivers):
    running = owners(checkpoint)
    metas, jobs, engines = running.metas, [], []
    try:
        for nproc in (2, 1, 2):
            engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=nproc)
            own = tmp_path / f"fan-out-{len(jobs)}.json"
            jobs.append(start(*fill_arguments(metas, engine.socket, "--fan-out", "--save-metas-file", own, "--sleep-time", 300,
                                              "--job", f"{tmp_path.name}-{len(jobs)}", nproc=nproc)))
            wait_for(lambda: own.exists() or jobs[-1].poll() is not None, what="the metas of a job that is being filled")
            engines.append(engine)
            metas = own
        for engine in engines:
            code, log = engine.finish()
            assert code == 0, log
        running.stop()
        engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
        done = run(*fill_arguments(metas, engine.socket, nproc=1))
        assert done.returncode == 0, done.stdout + done.stderr
        assert engine.finish()[0] == 0
    finally:
        for job in jobs:
            job.send_signal(signal.SIGTERM)
        for job in jobs:
            job.communicate(timeout=60)


def test_fan_out_is_for_loaded_metas(tmp_path, checkpoint):
    done = run("update", "--checkpoint-path", checkpoint, "--fan-out", "--engine", "none")
    assert done.returncode == 2 and "--load-metas-file" in done.stderr, done.stderr


def test_a_file_of_a_dead_job_is_refused_by_name_and_touches_no_engine(checkpoint, owners, receivers):
    running = owners(checkpoint)
    for pid in running.rank_pids():
        os.kill(pid, signal.SIGKILL)
    running.stop()
    engine = receivers(workers=2)
    # A second of it is the refusal, at most; the rest is for slow machines.
    done = run(*fill_arguments(running.metas, engine.socket), timeout=10)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "rank 0" in output and "of the loaded metas" in output, output
    engine.stop()


def test_the_file_of_a_restarted_job_is_refused(tmp_path, checkpoint, owners, receivers):
    first = owners(checkpoint, nproc=1, env={"UCX_TCP_PORT_RANGE": "0"})
    old = tmp_path / "old.json"
    shutil.copy(first.metas, old)
    first.stop(signal.SIGKILL)
    second = owners(checkpoint, nproc=1)
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
    done = run(*fill_arguments(old, engine.socket, nproc=1))
    assert done.returncode == 1 and "rank 0" in done.stdout + done.stderr, done.stdout + done.stderr
    done = run(*fill_arguments(second.metas, engine.socket, nproc=1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert engine.finish()[0] == 0


@pytest.fixture(scope="module")
def large_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "large"
    assert run("make-checkpoint", "--like", "qwen3-0.6b", "--layers", 28, "--shrink", 2, folder).returncode == 0
    return folder


class Gate:
    """Before an engine's socket: keeps its call back until it is opened. Questions whether the engine is ready pass."""

    def __init__(self, engine):
        self.engine = engine.socket
        self.socket = engine.socket.with_name("gate.sock")
        self.called, self.opened = threading.Event(), threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.socket))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.engine))
            threading.Thread(target=self.pump, args=(client, server), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client), daemon=True).start()

    def pump(self, source, target):
        try:
            while data := source.recv(1 << 16):
                if data.startswith(b"POST"):
                    self.called.set()
                    self.opened.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side has ended


def filling(metas, engine, job):
    """A job that reads, and cannot end before the gate is opened: its ring is far smaller than the checkpoint."""
    gate = Gate(engine)
    process = start(*fill_arguments(metas, gate.socket, "--job", job, "--ring-size", "2MiB", "--chunk-size", "1MiB"))
    wait_for(lambda: gate.called.is_set() or process.poll() is not None, what="the call of the engine", seconds=60)
    assert process.poll() is None, process.communicate()[0]
    return process, gate


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_owner_that_dies_in_the_middle_is_named_and_the_next_update_works(tmp_path, large_checkpoint, owners, receivers, how):
    running = owners(large_checkpoint)
    victim = running.rank_pids()[1]
    engine = receivers("--expect", large_checkpoint, workers=2)
    process, gate = filling(running.metas, engine, tmp_path.name)
    os.kill(victim, how)
    gate.opened.set()
    output, _ = process.communicate(timeout=30)  # six seconds, and some for slow machines
    assert process.returncode == 1, output
    assert "rank 1 (" in output and "of the loaded metas" in output, output
    running.stop(signal.SIGKILL)
    other = owners(large_checkpoint)
    done = run(*fill_arguments(other.metas, engine.socket), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_jobs_that_hold_the_same_stand_in_for_each_other(tmp_path, large_checkpoint, owners, receivers):
    jobs = [owners(large_checkpoint, "--job", f"{tmp_path.name}-{i}", nproc=i + 1) for i in range(2)]
    both = ",".join(str(job.metas) for job in jobs)
    engine = receivers("--expect", large_checkpoint, workers=2)
    process, gate = filling(both, engine, tmp_path.name)
    for pid in jobs[1].rank_pids():
        os.kill(pid, signal.SIGKILL)
    gate.opened.set()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    # The next one is told so before it begins; without the other job there is nobody left.
    done = run(*fill_arguments(both, engine.socket))
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "of the loaded metas; file 2" in output, output
    jobs[0].stop(signal.SIGKILL)
    done = run(*fill_arguments(both, engine.socket))
    assert done.returncode == 1 and "nobody is left" in done.stdout + done.stderr, done.stdout + done.stderr


def test_an_rdma_filter_that_matches_nothing_leaves_a_broadcast_over_hosts(tmp_path, checkpoint, owners, receivers):
    filtered = {"PS_P2P_STORE_RDMA_DEVICES": "mlx5_77"}
    port = free_port()
    engines = [receivers("--expect", checkpoint, "--exit-after", 1, workers=1) for _ in range(2)]
    ranks = [start("update", "--device", "host", "--checkpoint-path", checkpoint, "--engine", "vllm", "--uds", engine.socket,
                   "--inference-parallel-size", 1, "--job", tmp_path.name, "--timeout", 60,
                   env={**filtered, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                        "PS_HOST_ID": f"host{rank}"})
             for rank, engine in enumerate(engines)]
    for rank in ranks:
        output, _ = rank.communicate(timeout=90)
        assert rank.returncode == 0 and "mlx5_77" in output, output
    for engine in engines:
        assert engine.finish()[0] == 0
    running = owners(checkpoint, nproc=1)
    engine = receivers(workers=1)
    done = run(*fill_arguments(running.metas, engine.socket, nproc=1), env=filtered)
    assert done.returncode == 1 and "mlx5_77" in done.stdout + done.stderr, done.stdout + done.stderr


def test_an_owner_that_is_told_to_end_lets_its_readers_finish(tmp_path, checkpoint, owners, receivers):
    running = owners(checkpoint)
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=2)
    process, gate = filling(running.metas, engine, tmp_path.name)
    running.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # an owner that does not wait is gone by then; one that does waits five seconds
    gate.opened.set()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert engine.finish()[0] == 0


def test_eight_ranks_of_one_host_start_at_once(checkpoint, owners, receivers):
    running = owners(checkpoint, nproc=2)
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=8)
    done = run(*fill_arguments(running.metas, engine.socket, nproc=8))
    assert done.returncode == 0, done.stdout + done.stderr
    assert engine.finish()[0] == 0


def test_little_lockable_memory(checkpoint, owners, receivers):
    def limit():
        # Root may lock what it likes, unless this is taken from it: the program that is started does not have it then.
        PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    limited = {"preexec_fn": limit}
    running = owners(checkpoint, nproc=1, **limited)
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
    job = start(*fill_arguments(running.metas, engine.socket, nproc=1), **limited)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0, output
    assert engine.finish()[0] == 0


def test_the_address_is_chosen_logged_and_in_the_metas(tmp_path, checkpoint, owners, receivers):
    running = owners(checkpoint, "--advertise", "lo", nproc=1)
    network = json.loads(running.metas.read_text())["ranks"][0]["network"]
    assert network["address"] == "127.0.0.1" and network["devices"] == ["lo"], network
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
    done = run(*fill_arguments(running.metas, engine.socket, "--advertise", "127.0.0.1", nproc=1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert engine.finish()[0] == 0
    # An address that is not this host's: nothing can be read, and the reason is said.
    engine = receivers(workers=1)
    done = run(*fill_arguments(running.metas, engine.socket, "--advertise", "203.0.113.9", nproc=1))
    output = done.stdout + done.stderr
    assert done.returncode == 1 and "203.0.113.9" in output and "no transport" in output, output
    # Who reads nobody does not need one.
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
    done = run("update", "--nproc", 1, "--device", "host", "--checkpoint-path", checkpoint, "--engine", "vllm", "--uds",
               engine.socket, "--advertise", "203.0.113.9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert engine.finish()[0] == 0


def test_a_job_of_one_host_names_an_address_that_others_reach(checkpoint, owners):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("no default route")
        outward = datagrams.getsockname()[0]
    if outward.startswith("127."):
        pytest.skip("the default route leads to this host")
    running = owners(checkpoint, nproc=1)
    network = json.loads(running.metas.read_text())["ranks"][0]["network"]
    assert network["address"] == outward and network["devices"] and "lo" not in network["devices"], network


def test_inspect_network():
    done = run("inspect", "--network", "--ranks", 2)
    assert done.returncode == 0, done.stderr
    for text in ("interfaces:", "RDMA devices", "local rank 1:", "UCX", "tcp/lo"):
        assert text in done.stdout, done.stdout
    done = run("inspect", "--network", env={"PS_P2P_STORE_RDMA_DEVICES": "mlx5_77"})
    assert done.returncode == 2 and "mlx5_77" in done.stderr, done.stderr
    assert run("inspect").returncode == 2


def test_metas_that_are_no_metas_are_refused(tmp_path, checkpoint):
    missing = run(*fill_arguments(tmp_path / "missing.json", tmp_path / "nobody.sock"))
    assert missing.returncode == 2 and "missing.json" in missing.stderr, missing.stderr
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"format": "something"}))
    wrong = run(*fill_arguments(other, tmp_path / "nobody.sock", "--engine", "none"))
    assert wrong.returncode != 0 and '"format"' in wrong.stderr, wrong.stderr
    both = run("update", "--checkpoint-path", checkpoint, "--load-metas-file", other)
    assert both.returncode == 2


@pytest.mark.parametrize("method", ["broadcast", "p2p", "all"])
def test_update_methods(tmp_path, checkpoint, receivers, method):
    first = receivers("--expect", checkpoint, "--exit-after", {"broadcast": 1, "p2p": 1, "all": 2}[method])
    second = receivers("--expect", checkpoint, "--exit-after", 1)
    report = tmp_path / "report.json"
    done = run("update", "--nproc", 4, "--device", "host", "--checkpoint-path", checkpoint, "--engine", "vllm",
               "--inference-parallel-size", 2, "--uds", f"{first.socket},{second.socket}", "--update-method", method,
               "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    code, log = first.finish()
    assert code == 0, log
    if method == "p2p":
        second.stop()
    else:
        assert second.finish()[0] == 0

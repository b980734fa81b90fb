"""The program's main job and its faults, with real processes."""
import os
import pathlib
import signal
import subprocess
import time

import pytest

from conftest import free_port, report_of, run, shared_objects, start, wait_for


def update_arguments(checkpoint, sockets, *more, nproc=4, parallel=2, engine="vllm"):
    return ("update", "--nproc", nproc, "--device", "host", "--checkpoint-path", checkpoint, "--engine", engine,
            "--inference-parallel-size", parallel, "--uds", ",".join(map(str, sockets)), *more)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_four_ranks_update_two_instances(tmp_path, checkpoint, receivers, engine):
    engines = [receivers("--expect", checkpoint, "--exit-after", 1) for _ in range(2)]
    report = tmp_path / "report.json"
    done = run(*update_arguments(checkpoint, [e.socket for e in engines], "--report", report, "--job", tmp_path.name,
                                 engine=engine))
    assert done.returncode == 0, done.stdout + done.stderr
    for receiver in engines:
        code, log = receiver.finish()
        assert code == 0, log
    content = report_of(report)
    assert len(content["ranks"]) == 4
    for rank in content["ranks"]:
        assert rank["verified_tensors"] == content["total_tensors"] > 0
        assert rank["loaded_bytes"] == content["total_bytes"]
        assert {"prepare", "deliver"} & {stage["name"] for stage in rank["stages"]}
    assert not shared_objects(tmp_path.name)


def test_the_split_by_files(checkpoint, receivers):
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=1)
    done = run(*update_arguments(checkpoint, [engine.socket], "--split", "files", nproc=1, parallel=1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert engine.finish()[0] == 0


def test_a_mismatch_is_the_receivers_exit_code(tmp_path, checkpoint, receivers):
    other = tmp_path / "other"
    assert run("make-checkpoint", "--like", "qwen3-0.6b", "--layers", 8, "--shrink", 8, "--seed", 99, other).returncode == 0
    engine = receivers("--expect", other, "--exit-after", 1, workers=1)
    run(*update_arguments(checkpoint, [engine.socket], nproc=1, parallel=1))
    code, log = engine.finish()
    assert code == 1 and "model." in log, log


def test_usage_errors_exit_with_2(tmp_path):
    for arguments in (("update", "--no-such-option"), ("no-such-command",), ("update", "--ring-size", "big"),
                      ("make-checkpoint", "--like", "no-such-model", tmp_path / "x")):
        done = run(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert "Traceback" not in done.stderr and done.stderr.strip()
    for arguments in (("--help",), ("--version",), ("update", "--help"), ("receive", "--help"), ("hub", "--help"),
                      ("inspect", "--help"), ("make-checkpoint", "--help")):
        assert run(*arguments).returncode == 0, arguments


def test_a_checkpoint_with_a_missing_shard_touches_no_engine(tmp_path, checkpoint, receivers):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in checkpoint.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    gone = sorted(broken.glob("*.safetensors"))[1]
    gone.unlink()
    engine = receivers(workers=1)
    done = run(*update_arguments(broken, [engine.socket], nproc=1, parallel=1))
    assert done.returncode != 0
    assert gone.name in done.stdout + done.stderr


class Job:
    """Ranks that are started one by one, so that each can be killed or stopped."""

    def __init__(self, name, checkpoint, sockets, nproc=4, parallel=2):
        # A ring of a few small buckets: the update is still under way when something is done to it.
        common = ("update", "--job", name, "--ring-size", "8MiB", "--chunk-size", "1MiB", "--device", "host", "--checkpoint-path", checkpoint, "--engine", "vllm",
                  "--inference-parallel-size", parallel, "--uds", ",".join(map(str, sockets)), "--timeout", 60)
        port = free_port()
        self.ranks = []
        for rank in range(nproc):
            env = {"RANK": str(rank), "WORLD_SIZE": str(nproc), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
            self.ranks.append(start(*common, env=env))

    def outcomes(self, skip=(), timeout=90):
        results = {}
        for number, rank in enumerate(self.ranks):
            if number in skip:
                continue
            output, _ = rank.communicate(timeout=timeout)
            results[number] = (rank.returncode, output)
        return results

    def kill_all(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()


@pytest.fixture(scope="module")
def large_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "large"
    assert run("make-checkpoint", "--like", "qwen3-0.6b", "--layers", 28, "--shrink", 2, folder).returncode == 0
    return folder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_that_dies_fails_the_others_and_the_next_update_works(tmp_path, large_checkpoint, receivers, how, victim):
    engines = [receivers("--expect", large_checkpoint) for _ in range(2)]
    sockets = [e.socket for e in engines]
    name = tmp_path.name
    job = Job(name, large_checkpoint, sockets)
    try:
        wait_for(lambda: shared_objects(name), what="the ring of the update")
        job.ranks[victim].send_signal(how)
        outcomes = job.outcomes(skip={victim})
        for number, (code, output) in outcomes.items():
            assert code == 1, (number, output)
            assert f"rank {victim}" in output, output
    finally:
        job.kill_all()
    done = run(*update_arguments(large_checkpoint, sockets, "--job", name), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not shared_objects(name), "the next job of this name removes what a killed one left"


def test_a_killed_receiver_is_an_error_of_every_rank(tmp_path, large_checkpoint, receivers):
    engines = [receivers() for _ in range(2)]
    job = Job(tmp_path.name, large_checkpoint, [e.socket for e in engines])
    try:
        wait_for(lambda: shared_objects(tmp_path.name), what="the ring of the update")
        engines[1].process.kill()
        for number, (code, output) in job.outcomes(timeout=45).items():
            assert code == 1, (number, output)
    finally:
        job.kill_all()


def test_the_launcher_forwards_signals_and_leaves_no_orphans(checkpoint, tmp_path):
    # Nobody listens at the socket: the update waits for its engine.
    process = start(*update_arguments(checkpoint, [tmp_path / "nobody.sock"] * 2, "--timeout", 60))
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode != 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "nobody.sock")], capture_output=True, text=True).stdout.split()
    assert not left, left


def test_two_jobs_side_by_side(checkpoint, receivers):
    engines = [receivers("--expect", checkpoint, "--exit-after", 1) for _ in range(2)]
    jobs = [start(*update_arguments(checkpoint, [engine.socket], nproc=2)) for engine in engines]
    for job in jobs:
        output, _ = job.communicate(timeout=60)
        assert job.returncode == 0, output
    for engine in engines:
        assert engine.finish()[0] == 0


def test_inspect_reads_what_was_made(checkpoint):
    done = run("inspect", "--json", checkpoint)
    assert done.returncode == 0, done.stderr
    assert '"tensors"' in done.stdout
    bad = pathlib.Path(__file__).resolve().parents[1] / "data" / "safetensors" / "s15_overlap.safetensors"
    done = run("inspect", bad)
    assert done.returncode == 2 and "s15_overlap" in done.stdout + done.stderr

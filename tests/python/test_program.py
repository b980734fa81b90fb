"""The program's main job and its faults, with real processes."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
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
        assert {"connect", "agree", "plan", "allocate", "open", "deliver", "finish"} <= {s["name"] for s in rank["stages"]}
    answers = [answer for rank in content["ranks"] for answer in rank.get("engine_answers", [])]
    path = "/collective_rpc" if engine == "vllm" else "/update_weights_from_ipc"
    assert [(answer["path"], answer["status"]) for answer in answers] == [(path, 200)] * 2 and all(a["body"] for a in answers)
    filled = sum(rank["filled_bytes"] for rank in content["ranks"])
    assert filled == content["total_bytes"] and content["loaded_bytes"] == 4 * filled
    assert content["seconds"] > 0 and content["gb_per_s"] > 0
    assert not shared_objects(tmp_path.name)


@pytest.mark.parametrize("nproc", [1, 8])
def test_the_split_by_files(checkpoint, receivers, nproc):
    """With 8 ranks some have no file at all."""
    assert len(list(checkpoint.glob("*.safetensors"))) < 8
    engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=nproc)
    done = run(*update_arguments(checkpoint, [engine.socket], "--split", "files", nproc=nproc, parallel=nproc))
    assert done.returncode == 0, done.stdout + done.stderr
    assert engine.finish()[0] == 0


@pytest.mark.parametrize("more", [(), ("--in-place",)])
def test_a_checkpoint_in_shared_memory_outlives_every_update(checkpoint, receivers, more):
    """Single tensors of one file are dealt to both ranks; the update fails (no worker comes), then one succeeds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        files = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
        for name, content in files.items():
            (pathlib.Path(folder) / name).write_bytes(content)

        def update(*arguments):
            done = run("update", "--nproc", 2, "--device", "host", "--checkpoint-path", folder, *more, *arguments)
            assert {file.name: file.read_bytes() for file in pathlib.Path(folder).iterdir()} == files
            return done

        failed = update("--engine", "none", "--timeout", 2)
        assert failed.returncode == 1 and "no worker has connected" in failed.stderr, failed.stderr
        engine = receivers("--expect", checkpoint, "--exit-after", 1, workers=2)
        done = update("--engine", "vllm", "--uds", engine.socket)
        assert done.returncode == 0, done.stderr
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
                      ("make-checkpoint", "--like", "no-such-model", tmp_path / "x"), ("inspect", "--network", tmp_path)):
        done = run(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert "Traceback" not in done.stderr and done.stderr.strip()
    for command in ((), ("update",), ("receive",), ("hub",), ("inspect",), ("make-checkpoint",), ("bench",), ("serve",)):
        for flag in ("--help", "--version"):
            done = run(*command, flag)
            assert done.returncode == 0 and done.stdout.strip(), (command, flag)


def test_bench_shows_what_an_update_reaches_of_the_machine():
    done = run("bench", "--device", "host", "--size", "64MiB", "--seconds", 0.02, "--update-size", "16MiB", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert {"host to device", "on the device", "registration from memory"} <= {row["what"] for row in figures["ceilings"]}
    ours = {row["what"]: row for row in figures["ours"]}
    for what in ("update, verified", "update, not verified", "loading by the worker"):
        assert ours[what]["gb_per_s"] > 0 and ours[what]["share_of_ceiling"] > 0, ours
    alone = run("bench", "--device", "host", "--size", "64MiB", "--seconds", 0.02, "--no-update")
    assert alone.returncode == 0 and "update" not in alone.stdout, alone.stdout + alone.stderr


@pytest.mark.parametrize("nproc", [0, 1, 2])
def test_a_checkpoint_with_a_missing_shard_touches_no_engine(tmp_path, checkpoint, receivers, nproc):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in checkpoint.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    gone = sorted(broken.glob("*.safetensors"))[1]
    gone.unlink()
    engine = receivers(workers=max(nproc, 1))
    done = run(*update_arguments(broken, [engine.socket], nproc=nproc, parallel=max(nproc, 1)))
    assert done.returncode == 2, done.stdout + done.stderr
    assert gone.name in done.stdout + done.stderr
    engine.stop()
    assert "update" not in engine.log, engine.log


def test_a_report_is_of_this_update_or_says_that_it_failed(tmp_path, checkpoint, receivers):
    report = tmp_path / "report.json"
    engine = receivers("--expect", checkpoint, workers=1)
    arguments = update_arguments(checkpoint, [engine.socket], "--report", report, nproc=1, parallel=1)
    assert run(*arguments).returncode == 0
    assert report_of(report)["loaded_bytes"] > 0
    engine.stop()

    def failure(*more, nproc=1, env=None):
        report.write_text("of an earlier update")
        done = run(*update_arguments(checkpoint, [engine.socket], "--report", report, "--timeout", 2, *more, nproc=nproc, parallel=1), env=env)
        assert done.returncode == 1, done.stderr
        assert set(report_of(report)) == {"version", "error"}
        return report_of(report)["error"]["message"]

    assert str(engine.socket) in failure()
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert "rank 1 of 2 never joined" in failure("--join-timeout", 0.5, "--inference-parallel-size", 2, nproc=0, env=alone)


@pytest.mark.parametrize("launch", [("--nproc", 2), ()], ids=["launched", "one rank"])
def test_what_is_wrong_before_any_rank_joins_is_a_usage_error_in_one_line(tmp_path, checkpoint, launch):
    metas = tmp_path / "metas.json"
    metas.write_text("{")
    open_to_all = tmp_path / "secret"
    open_to_all.write_text("secret")
    open_to_all.chmod(0o644)
    given = ("--checkpoint-path", checkpoint)
    for arguments, env, text in (
            ((*given, "--secret-file", tmp_path / "none"), {}, str(tmp_path / "none")),
            ((*given, "--api-key-file", open_to_all), {}, "chmod 600"),
            ((*given, "--report", tmp_path / "no" / "r.json"), {}, "no/r.json"),
            (given, {"PS_MAX_BUCKET_SIZE_GB": "abc"}, "PS_MAX_BUCKET_SIZE_GB"),
            (given, {"PS_MEM_FRACTION": "2"}, "PS_MEM_FRACTION"),
            (("--load-metas-file", tmp_path / "none.json"), {}, "none.json"),
            (("--load-metas-file", metas), {}, "metas.json"),
            ((*given, "--load-metas-file", metas), {}, "either")):
        place = {} if launch else {"RANK": "0", "WORLD_SIZE": "1"}
        done = run("update", *launch, "--engine", "none", *arguments, env={**env, **place})
        assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1, (arguments, done.returncode, done.stderr)


def test_expect_is_not_met_by_no_update(checkpoint, receivers):
    engine = receivers("--expect", checkpoint, workers=1)
    engine.stop()
    assert engine.process.returncode == 1 and "no update has come" in engine.log, engine.log


def test_quiet_is_quiet_and_a_pipe_gets_plain_lines(checkpoint, receivers):
    engine = receivers(workers=1)
    done = run(*update_arguments(checkpoint, [engine.socket], "--quiet", nproc=1, parallel=1))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run(*update_arguments(checkpoint, [engine.socket], nproc=1, parallel=1))
    progress = [line for line in done.stderr.splitlines() if "%" in line]
    assert progress and progress[-1].startswith("100 %") and "#" not in done.stderr, done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_an_engine_on_tcp(tmp_path, checkpoint, host):
    if not can_listen(host.strip("[]")):
        pytest.skip(f"this machine has no {host}")
    ready = tmp_path / "ready"
    receiver = start("receive", "--listen", f"{host}:0", "--ready-file", ready, "--expect", checkpoint, "--exit-after", 1)
    try:
        wait_for(ready.exists, what="the receiver")
        done = run("update", "--nproc", 1, "--device", "host", "--checkpoint-path", checkpoint, "--endpoint", ready.read_text().strip())
        assert done.returncode == 0, done.stdout + done.stderr
        assert receiver.wait(timeout=30) == 0
    finally:
        receiver.kill()
        receiver.communicate()


@pytest.mark.parametrize("rank, size, local", [("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
                                               ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")])
@pytest.mark.parametrize("external", [False, True])
def test_a_rank_under_torchrun_slurm_or_open_mpi(checkpoint, receivers, rank, size, local, external):
    engine = receivers("--expect", checkpoint, "--exit-after", 1)
    hub, rendezvous = None, ()
    if external:
        hub = start("hub", "--listen", "127.0.0.1:0", "--world-size", 2)
        rendezvous = ("--external-hub", "--rendezvous", hub.stdout.readline().split()[-1])
    port = free_port()
    ranks = [start(*update_arguments(checkpoint, [engine.socket], *rendezvous, nproc=0),
                   env={rank: str(i), size: "2", local: str(i), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
             for i in range(2)]
    for process in ranks:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    assert engine.finish()[0] == 0
    if hub:
        output, _ = hub.communicate(timeout=30)
        assert hub.returncode == 0 and "all ranks have left" in output


# Silence after which a rank is lost, and what a machine with two cores may need besides to start programs under asan, to see
# the loss, and to end them (a failed update waits 5 s more for workers that come late). 25 s must fail.
HEARTBEAT, SLACK = 5, 15


def test_ranks_that_never_join_are_named_and_nobody_waits_for_them(checkpoint, receivers):
    engine, port = receivers(), free_port()
    begin = time.monotonic()
    ranks = [start(*update_arguments(checkpoint, [engine.socket], nproc=0),
                   env={"RANK": str(i), "WORLD_SIZE": "4", "LOCAL_RANK": str(i), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
             for i in (0, 2)]
    for process in ranks:
        output, _ = process.communicate(timeout=45)  # without a word of ours: the heartbeat time
        assert process.returncode == 1, output
        assert "ranks 1, 3 of 4 never joined" in output, output
    assert time.monotonic() - begin < HEARTBEAT + SLACK


def can_listen(host):
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return True
    except OSError:
        return False


def test_memory_of_a_rank_is_its_share_and_little_more(large_checkpoint, receivers):
    engine = receivers(workers=1)
    process = start(*update_arguments(large_checkpoint, [engine.socket], "--sleep-time", 2, nproc=0, parallel=1))
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.005)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    share = sum(file.stat().st_size for file in large_checkpoint.glob("*.safetensors"))
    assert share < peak < 1.02 * share + 48 * 2**20


def anonymous_bytes(pid, field="RssAnon"):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field)), 0)


class Job:
    """Ranks that are started one by one, so that each can be killed or stopped."""

    def __init__(self, name, checkpoint, sockets, nproc=4, parallel=2, hosts=None):
        # A ring of a few small buckets: the update is still under way when something is done to it.
        common = ("update", "--job", name, "--ring-size", "8MiB", "--chunk-size", "1MiB", "--device", "host", "--checkpoint-path", checkpoint, "--engine", "vllm",
                  "--inference-parallel-size", parallel, "--uds", ",".join(map(str, sockets)), "--timeout", 60)
        port = free_port()
        self.ranks = []
        for rank in range(nproc):
            env = {"RANK": str(rank), "WORLD_SIZE": str(nproc), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
            if hosts:
                env["PS_HOST_ID"] = hosts[rank]
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


def loading(receiver):
    """A condition: the receiver has begun to load, and is far from done."""
    before = anonymous_bytes(receiver.process.pid)
    return lambda: anonymous_bytes(receiver.process.pid) > before + 24 * 2**20


@pytest.mark.parametrize("hosts", [None, ["a", "a", "b", "b"]], ids=["one host", "two hosts"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_fails_the_others_and_the_next_update_works(tmp_path, large_checkpoint, receivers, how, victim, hosts):
    engines = [receivers("--expect", large_checkpoint, "--exit-after", 1) for _ in range(2)]
    sockets = [e.socket for e in engines]
    name = tmp_path.name
    begun = [loading(engine) for engine in engines]
    job = Job(name, large_checkpoint, sockets, hosts=hosts)
    try:
        wait_for(lambda: any(condition() for condition in begun), pause=0.002, what="the first weights")
        begin = time.monotonic()
        job.ranks[victim].send_signal(how)
        outcomes = job.outcomes(skip={victim}, timeout=45)
        assert time.monotonic() - begin < HEARTBEAT + SLACK, outcomes
        for number, (code, output) in outcomes.items():
            assert code == 1, (number, output)
            assert f"rank {victim}" in output, output
    finally:
        job.kill_all()
    done = run(*update_arguments(large_checkpoint, sockets, "--job", name), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    if not hosts:
        assert not shared_objects(name), "the next job of this name removes what a killed one left"
    # The engine of the dead rank's instance may not have been called yet.
    ends = [engine.finish() for engine in engines]
    assert all(code == 0 for code, _ in ends) and any("update failed" in log for _, log in ends), ends


def test_a_killed_receiver_is_an_error_of_every_rank(tmp_path, large_checkpoint, receivers):
    engines = [receivers() for _ in range(2)]
    begun = loading(engines[1])
    job = Job(tmp_path.name, large_checkpoint, [e.socket for e in engines])
    try:
        wait_for(begun, pause=0.002, what="the first weights")
        engines[1].process.kill()
        for number, (code, output) in job.outcomes(timeout=45).items():
            assert code == 1, (number, output)
            assert "worker" in output or str(engines[1].socket) in output, output
    finally:
        job.kill_all()


def test_the_launcher_forwards_signals_and_leaves_no_orphans(checkpoint, tmp_path):
    # Nobody listens at the socket: the update waits for its engine.
    nobody = tmp_path / "nobody.sock"
    process = start(*update_arguments(checkpoint, [nobody] * 2, "--timeout", 60))

    def ranks():
        return subprocess.run(["pgrep", "-f", str(nobody)], capture_output=True, text=True).stdout.split()

    wait_for(lambda: len(ranks()) == 5, what="the launcher and its four ranks")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert not ranks()


def test_a_signal_in_the_middle_of_an_update_is_told_to_the_engines(large_checkpoint, receivers):
    engine = receivers("--expect", large_checkpoint, "--exit-after", 1)
    begun = loading(engine)
    arguments = update_arguments(large_checkpoint, [engine.socket], nproc=2)
    process = start(*arguments, "--ring-size", "8MiB", "--chunk-size", "1MiB")
    wait_for(begun, pause=0.002, what="the first weights")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert run(*arguments, timeout=120).returncode == 0
    code, log = engine.finish()
    assert code == 0 and "update failed" in log, log


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

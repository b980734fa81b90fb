"""Mooncake's transfer engine over TCP, between processes: P2PStore, a ParameterServer that reads by it, and the field's P2PStore.

usage: prove_mooncake.py --ours FOLDER [--field FOLDER] --mooncake FOLDER    folders to put before the path, by whose package it is
"""
import argparse
import ctypes
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time

SIZE = 32 << 20
WHO = {"store": "ours", "owner": "ours", "target": "ours", "field-store": "field", "field-owner": "field"}


def pattern(size, seed):
    import random

    return random.Random(seed).randbytes(size)


class Tensor:
    """What both packages need of one."""

    def __init__(self, content):
        self.buffer = bytearray(content)
        self.nbytes = len(content)

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))


class TcpDevices:
    """In the place of the field's DeviceManager, which needs a GPU."""

    device_type = "cpu"
    transfer_engine_protocol = "tcp"

    class device_module:
        @staticmethod
        def device_count():
            return 1

        @staticmethod
        def set_device(_index):
            pass

    def rdma_device(self, _rank):
        return ""


# --- the processes: each says a line, and goes on when it hears one


def say(*what):
    print("@", *what, flush=True)


def hear():
    return sys.stdin.readline()


def store(_):
    """A P2PStore of whichever package is on the path, with one tensor."""
    from checkpoint_engine.p2p_store import P2PStore

    held = P2PStore(TcpDevices())
    tensor = Tensor(pattern(SIZE, 1))
    held.register_named_tensors({"w": tensor})
    say(held.addr, tensor.data_ptr())
    hear()
    assert held.unregister_named_tensors(["w"]) == 1
    say("unregistered")
    hear()


def owner(arguments):
    from checkpoint_engine import ParameterServer
    from checkpoint_engine.mooncake import MooncakeTransfer

    server = ParameterServer(rank=0, world_size=1, auto_pg=False, device="host", master_addr="127.0.0.1", master_port=free_port(),
                             job="mooncake-owner", transfer_engine=MooncakeTransfer("127.0.0.1", "tcp"))
    server.register_checkpoint("c", named_tensors=numpy_tensors())
    server.gather_metas("c")
    pathlib.Path(arguments[0]).write_text(server.export_metas())
    say("ready")
    hear()
    server.unregister_checkpoint("c")
    say("unregistered")
    hear()
    server.close()


def field_owner(arguments):
    """The field's ParameterServer, but for what asks a GPU or other ranks: it registers its pool with its P2PStore. Its metas are
    written as pydantic writes them."""
    import pydantic
    import torch
    from checkpoint_engine import ps
    from checkpoint_engine.data_types import MemoryBufferMetaList

    empty = torch.empty
    torch.empty = lambda *sizes, pin_memory=False, **options: empty(*sizes, **options)
    ps.DeviceManager = TcpDevices
    ps._get_physical_gpu_id = lambda *_: "GPU-0"
    ps.dist.is_initialized = lambda: True
    ps.dist.all_gather_object = lambda gathered, mine: gathered.__setitem__(0, mine)
    server = ps.ParameterServer(rank=0, world_size=1, auto_pg=False, master_addr="127.0.0.1", master_port=free_port())
    server.register_checkpoint("c", named_tensors={name: torch.from_numpy(array.copy()) for name, array in numpy_tensors().items()})
    server.gather_metas("c")
    pathlib.Path(arguments[0]).write_bytes(pydantic.TypeAdapter(dict[int, MemoryBufferMetaList]).dump_json(server.get_metas()))
    say("ready")
    hear()
    server.unregister_checkpoint("c")
    say("unregistered")
    hear()


def target(arguments):
    import zmq
    from checkpoint_engine import ParameterServer, update_weights_from_ipc
    from checkpoint_engine.mooncake import MooncakeTransfer

    rank, port, name, middle, metas = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3] == "middle", arguments[4:]
    server = ParameterServer(rank=rank, world_size=2, auto_pg=False, device="host", master_addr="127.0.0.1", master_port=port,
                             job="mooncake-target", transfer_engine=MooncakeTransfer("127.0.0.1", "tcp"),
                             ring_bytes=(8 << 20) if middle else 0)
    texts = [pathlib.Path(each).read_text() for each in metas]
    server.load_metas(texts if len(texts) > 1 else texts[0])
    got = {}

    def load(tensors):
        if middle and not got:  # most of it does not fit into the ring, and has not been read
            say("halfway")
            hear()
        for name, tensor in tensors:
            got[name] = tensor.tobytes()  # numpy's: nothing here has loaded torch

    def engine(addresses):
        key, address = addresses[rank]
        update_weights_from_ipc(zmq.Context(), address, device_id=None, run=load)

    begin = time.monotonic()
    try:
        if name == "field":
            try:
                server.update(name, engine, inference_parallel_size=1, timeout=60)
                raise AssertionError("verified without digests")
            except RuntimeError as error:
                assert "no digests" in str(error), error
        server.update(name, engine, inference_parallel_size=1, timeout=SECONDS if middle else 60, verify=name != "field")
    except Exception as error:
        say("failed", f"{time.monotonic() - begin:.1f}", str(error).replace("\n", " "))
    else:
        wanted = {name: array.tobytes() for name, array in numpy_tensors().items()}
        assert got == wanted, "other bytes"
        say("loaded", sum(map(len, got.values())) >> 20, "MiB", f"{time.monotonic() - begin:.2f}")
    hear()
    server.close()


def numpy_tensors():
    import numpy

    return {f"model.layers.{i}.mlp.down_proj.weight": numpy.frombuffer(pattern(4 << 20, i), dtype=numpy.float32).reshape(1024, -1)
            for i in range(24)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- the parent


class Process:
    def __init__(self, folders, role, *arguments, env=None):
        path = [folders[WHO[role]], folders["mooncake"]]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "MC_FORCE_TCP": "1", "RANK": "0", "PS_HOST_IP": "127.0.0.1",
                 **(env or {})})

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("@ "):
                return line[2:].split()
        raise AssertionError(f"ended early:\n{self.process.communicate()[1][-3000:]}")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def is_silent(self, seconds):
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def kill(self):
        """What it has logged."""
        self.process.kill()
        return self.process.communicate()[1]


def prove_store(folders, role):
    """Our store reads what a store of either package has registered."""
    sys.path[:0] = [folders["ours"], folders["mooncake"]]
    os.environ["MC_FORCE_TCP"] = "1"
    from checkpoint_engine.p2p_store import P2PStore

    other = Process(folders, role)
    try:
        address, pointer = other.answer()
        mine, place = P2PStore(TcpDevices()), Tensor(bytes(SIZE))
        mine.register_named_tensors({"place": place})
        cut = SIZE // 3
        begin = time.monotonic()
        mine.batch_transfer_sync_read(address, [place.data_ptr(), place.data_ptr() + cut], [int(pointer), int(pointer) + cut],
                                      [cut, SIZE - cut])
        seconds = time.monotonic() - begin
        assert bytes(place.buffer) == pattern(SIZE, 1), "other bytes"
        for what, pieces in {"a byte too much": (int(pointer) + SIZE - 7, 8), "no byte": (int(pointer), 0)}.items():
            try:
                mine.batch_transfer_sync_read(address, [place.data_ptr()], [pieces[0]], [pieces[1]])
            except RuntimeError:
                continue
            assert pieces[1] == 0, what
        other.go_on()
        assert other.answer() == ["unregistered"]
        try:
            mine.batch_transfer_sync_read(address, [place.data_ptr()], [int(pointer)], [4096])
            raise AssertionError("memory that is no longer registered was read")
        except RuntimeError as error:
            assert address in str(error)
        assert mine.unregister_named_tensors(["place"]) == 1 and not mine.named_tensors
        print(f"{role}: {SIZE >> 20} MiB in {seconds:.3f} s")
    finally:
        other.kill()


def prove_server(folders, folder, same_host):
    """A job of two ranks fills itself from another by Mooncake, twice; then its owner is killed."""
    metas = folder / "metas.json"
    running = Process(folders, "owner", metas)
    try:
        assert running.answer() == ["ready"]
        for killed in (False, True):
            port = free_port()
            ranks = [Process(folders, "target", rank, port, "c", "whole", metas,
                             env={} if same_host else {"PS_HOST_ID": f"host-{rank}"}) for rank in range(2)]
            if killed:
                running.kill()
            answers = [rank.answer() for rank in ranks]
            for rank in ranks:
                rank.kill()
            if killed:
                assert all(answer[0] == "failed" and "of the loaded metas" in " ".join(answer) for answer in answers), answers
            else:
                assert all(answer[0] == "loaded" for answer in answers), answers
            print(f"{'one host' if same_host else 'two hosts'}: {' '.join(answers[0])}")
    finally:
        running.kill()


SECONDS = 120  # of an update that is disturbed: an owner that stops is noticed after 6, on a busy machine somewhat more


def prove_fault(folders, folder, fault, replica):
    """Two hosts fill themselves from a job, or from two that hold the same, while the first is stopped, is killed in the middle of a
    read, or wants its memory back."""
    metas = [folder / f"{fault}-{i}.json" for i in range(2 if replica else 1)]
    owners = [Process(folders, "owner", path) for path in metas]
    ranks = []
    try:
        for each in owners:
            assert each.answer() == ["ready"]
        port = free_port()
        ranks = [Process(folders, "target", rank, port, "c", "middle", *metas, env={"PS_HOST_ID": f"host-{rank}"})
                 for rank in range(2)]
        for rank in ranks:
            assert rank.answer() == ["halfway"]
        if fault == "unregistered":
            owners[0].go_on()
            assert owners[0].is_silent(1), "it did not wait for its readers"
        else:
            owners[0].stop()
        begin = time.monotonic()
        for rank in ranks:
            rank.go_on()
        if fault == "killed":
            time.sleep(1)  # now Mooncake waits for it
            owners[0].kill()
        answers = [rank.answer() for rank in ranks]
        seconds = time.monotonic() - begin
        if fault == "unregistered":
            for rank in ranks:
                rank.go_on()
            assert owners[0].answer() == ["unregistered"]
        logs = "".join(rank.kill() for rank in ranks)
        expected = "loaded" if replica or fault == "unregistered" else "failed"
        assert all(answer[0] == expected for answer in answers), (answers, logs[-3000:])
        if expected == "failed":
            assert all("of the loaded metas" in " ".join(answer) for answer in answers), answers
        elif replica:
            assert "reading on from replicas" in logs and "of the loaded metas" in logs, logs[-3000:]
        assert seconds < SECONDS / 2, seconds
        print(f"{fault}{', a replica fills in' if replica else ''}: {' '.join(answers[0])} ({seconds:.1f} s later)")
    finally:
        for each in owners + ranks:
            each.kill()


def prove_field_owner(folders, folder):
    """A job of two ranks fills itself out of the memory of the field's ParameterServer, twice; then it has taken it back."""
    metas = folder / "field.json"
    running = Process(folders, "field-owner", metas)
    try:
        assert running.answer() == ["ready"]
        for gone in (False, False, True):
            port = free_port()
            if gone:
                running.go_on()
                assert running.answer() == ["unregistered"]
            ranks = [Process(folders, "target", rank, port, "field", "whole", metas) for rank in range(2)]
            answers = [rank.answer() for rank in ranks]
            for rank in ranks:
                rank.kill()
            if gone:
                assert all(answer[0] == "failed" and "of the loaded metas" in " ".join(answer) for answer in answers), answers
            else:
                assert all(answer[0] == "loaded" for answer in answers), answers
            print(f"from the field's ParameterServer: {' '.join(answers[0])}")
    finally:
        running.kill()


def main():
    if sys.argv[1:2] == ["--role"]:
        role, arguments = sys.argv[2], sys.argv[3:]
        roles = {"store": store, "field-store": store, "owner": owner, "field-owner": field_owner, "target": target}
        return roles[role](arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for whose in ("ours", "field", "mooncake"):
        parser.add_argument(f"--{whose}", required=whose != "field")
    folders = vars(parser.parse_args())
    import tempfile

    prove_store(folders, "store")
    if folders["field"]:
        prove_store(folders, "field-store")
    with tempfile.TemporaryDirectory() as folder:
        for same_host in (True, False):
            prove_server(folders, pathlib.Path(folder), same_host)
        for fault in ("unregistered", "stopped", "killed"):
            for replica in (False, True)[: 1 if fault == "unregistered" else 2]:
                prove_fault(folders, pathlib.Path(folder), fault, replica)
        if folders["field"]:
            prove_field_owner(folders, pathlib.Path(folder))


if __name__ == "__main__":
    main()

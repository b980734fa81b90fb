"""The Mooncake adapter and P2PStore between processes, over a double of its engine. scripts/interop.sh p2p has the real one."""
import ctypes
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

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


@pytest.fixture
def transfers(monkeypatch):
    """Makes MooncakeTransfers of this process, over the double."""
    monkeypatch.syspath_prepend(str(DOUBLE))
    for name in [name for name in sys.modules if name.split(".")[0] == "mooncake"]:
        monkeypatch.delitem(sys.modules, name)
    from checkpoint_engine.mooncake import MooncakeTransfer

    made = []

    def make():
        made.append(MooncakeTransfer("127.0.0.1", "tcp"))
        return made[-1]

    yield make
    for transfer in made:
        transfer.close()


def registered(transfer, content):
    memory = bytearray(content)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    transfer.register_memory(address, len(content))
    return memory, address


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_owner_that_hangs_holds_up_nobody_else(transfers, monkeypatch):
    reader, healthy, hung = transfers(), transfers(), transfers()
    held = [registered(healthy, b"healthy!"), registered(hung, b"hanging.")]
    place = bytearray(8)
    to = ctypes.addressof(ctypes.c_char.from_buffer(place))
    goes_on = threading.Event()
    real = reader._engine.batch_transfer_sync_read

    def hanging(peer, *arguments):
        if peer.endswith(f":{hung._engine.get_rpc_port()}"):
            goes_on.wait(60)
        return real(peer, *arguments)

    monkeypatch.setattr(reader._engine, "batch_transfer_sync_read", hanging)
    for _ in range(4):
        with pytest.raises(InterruptedError):
            reader.read(hung.address, [(held[1][1], to, 8)], 60, lambda: True)
    assert reader.has_abandoned_reads(hung.address) and not reader.has_abandoned_reads(healthy.address)
    with pytest.raises(TimeoutError, match="given up"):
        reader.read(hung.address, [(held[1][1], to, 8)], 60, lambda: False)
    reader.read(healthy.address, [(held[0][1], to, 8)], 60, lambda: False)
    assert place == b"healthy!"
    goes_on.set()
    wait_until(lambda: not reader.has_abandoned_reads(hung.address))
    assert place == b"healthy!", "what was given up is written nowhere"
    reader.read(hung.address, [(held[1][1], to, 8)], 60, lambda: False)
    assert place == b"hanging."


def test_closing_ends_threads_and_ports(transfers):
    reader, owner = transfers(), transfers()
    memory, address = registered(owner, b"12345678")
    place = bytearray(8)
    to = ctypes.addressof(ctypes.c_char.from_buffer(place))
    reader.read(owner.address, [(address, to, 8)], 60, lambda: False)
    assert place == memory
    port = int(owner.address.split()[2])
    heard = []
    owner.set_receiver(heard.append)
    reader.send(owner.address, b"hello")
    wait_until(lambda: heard == [b"hello"])
    for transfer in (reader, owner, owner):
        transfer.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionError):
        reader.send(owner.address, b"hello")
    # What is left is the double's.
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("mooncake")])


def test_an_owner_that_is_gone_is_told_from_memory_that_is(transfers):
    reader, owner = transfers(), transfers()
    memory, address = registered(owner, b"12345678")
    to = ctypes.addressof(ctypes.c_char.from_buffer(bytearray(8)))
    reader.read(owner.address, [], 1, lambda: False)
    owner.deregister_memory(address)
    with pytest.raises(LookupError):
        reader.read(owner.address, [(address, to, 8)], 60, lambda: False)
    gone = f"127.0.0.1 {free_port()} 1"
    with pytest.raises(ConnectionError):
        reader.read(gone, [], 1, lambda: False)
    del memory


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_store_registers_all_tensors_or_none(transfers, monkeypatch):
    transfers()  # the double is what is imported
    from checkpoint_engine import P2PStore
    from mooncake.engine import TransferEngine

    class Tensor:
        def __init__(self, size):
            self.memory, self.nbytes = bytearray(size), size

        def data_ptr(self):
            return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    class Devices:
        transfer_engine_protocol = "tcp"

        class device_module:
            device_count = staticmethod(lambda: 1)

        def rdma_device(self, _rank):
            return ""

    monkeypatch.setenv("PS_HOST_IP", "127.0.0.1")
    store = P2PStore(Devices())
    whole = TransferEngine.batch_register_memory

    def half(engine, addresses, sizes):
        whole(engine, addresses[:2], sizes[:2])
        return -1

    tensors = {str(i): Tensor(16) for i in range(3)}
    with monkeypatch.context() as with_little_room:
        with_little_room.setattr(TransferEngine, "batch_register_memory", half)
        with pytest.raises(RuntimeError, match="3 tensors"):
            store.register_named_tensors(tensors)
    assert not store.named_tensors and not store.engine._ranges
    store.register_named_tensors(tensors)
    assert store.unregister_named_tensors(list(tensors)) == 3


def test_the_address_is_what_the_user_says(monkeypatch):
    from checkpoint_engine import get_ip
    from checkpoint_engine.errors import InvalidArgumentError

    assert get_ip()
    monkeypatch.setenv("PS_HOST_IP", "127.0.0.1")
    assert get_ip() == "127.0.0.1"
    monkeypatch.setenv("PS_HOST_IP", "203.0.113.1")
    with pytest.raises(InvalidArgumentError, match="203.0.113.1"):
        get_ip()

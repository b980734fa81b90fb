"""The Mooncake adapter and P2PStore between processes, over a double of its engine. scripts/interop.sh p2p has the real one."""
import contextlib
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
                          text=True, timeout=480)
    assert done.returncode == 0, done.stdout + done.stderr
    for proof in ("two hosts: loaded", "stopped: failed", "stopped, a replica fills in: loaded", "killed: failed",
                  "killed, a replica fills in: loaded", "unregistered: loaded"):
        assert proof in done.stdout, done.stdout


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


class Tensor:
    """Of so many bytes, or the first ones of another."""

    def __init__(self, size, of=None):
        self.memory, self.nbytes = of.memory if of else bytearray(size), size

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


@pytest.fixture
def store(transfers, monkeypatch):
    transfers()  # the double is what is imported
    from checkpoint_engine import P2PStore

    class Devices:
        transfer_engine_protocol = "tcp"

        class device_module:
            device_count = staticmethod(lambda: 1)

        def rdma_device(self, _rank):
            return ""

    monkeypatch.setenv("PS_HOST_IP", "127.0.0.1")
    return P2PStore(Devices())


@pytest.fixture
def with_little_room(monkeypatch):
    """Mooncake fails behind two pieces of memory."""
    from mooncake.engine import TransferEngine

    whole = TransferEngine.batch_register_memory

    def half(engine, addresses, sizes):
        whole(engine, addresses[:2], sizes[:2])
        return -1

    @contextlib.contextmanager
    def room():
        with monkeypatch.context() as replaced:
            replaced.setattr(TransferEngine, "batch_register_memory", half)
            yield

    return room


def test_a_store_registers_all_tensors_or_none(store, with_little_room):
    tensors = {str(i): Tensor(16) for i in range(3)}
    with with_little_room(), pytest.raises(RuntimeError, match="3 tensors"):
        store.register_named_tensors(tensors)
    assert not store.named_tensors and not store.engine._ranges
    store.register_named_tensors(tensors)
    assert store.unregister_named_tensors(list(tensors)) == 3


def test_a_call_that_fails_takes_nothing_back_of_an_earlier_one(store, with_little_room):
    first = Tensor(16)
    store.register_named_tensors({"embed": first})
    tied = {"head": Tensor(16, of=first), "a": Tensor(16), "b": Tensor(16), "c": Tensor(16)}
    with with_little_room(), pytest.raises(RuntimeError, match="4 tensors"):
        store.register_named_tensors(tied)
    assert list(store.named_tensors) == ["embed"] and store.engine._ranges == {first.data_ptr(): 16}
    with pytest.raises(ValueError, match="longer has 17 bytes where 16 are registered"):
        store.register_named_tensors({"longer": Tensor(17, of=first)})
    store.register_named_tensors(tied)
    assert len(store.engine._ranges) == 4


def test_memory_of_two_names_is_registered_until_the_last_one_goes(store):
    first = Tensor(16)
    store.register_named_tensors({"short": Tensor(8, of=first), "whole": first})
    store.register_named_tensors({"tied": Tensor(16, of=first)})
    assert store.engine._ranges == {first.data_ptr(): 16}
    assert store.unregister_named_tensors(["whole", "tied"]) == 2
    assert store.engine._ranges == {first.data_ptr(): 16}
    with pytest.raises(KeyError, match="whole"):
        store.unregister_named_tensors(["short", "whole"])
    assert store.unregister_named_tensors(["short"]) == 1
    assert not store.engine._ranges and not store.named_tensors


def test_sockets_of_those_who_are_gone_are_closed(transfers, monkeypatch):
    from checkpoint_engine import _peer_sockets

    owner = transfers()
    ports = [free_port() for _ in range(30)]
    for port in ports:
        owner.send(f"127.0.0.1 1 {port}", b"nobody hears this")
    assert len(owner._senders) == len(set(ports))
    monkeypatch.setattr(_peer_sockets, "_IDLE_SECONDS", 0.05)
    wait_until(lambda: len(owner._senders) == 0)
    hears_from(owner, transfers())


def test_addresses_that_are_made_up_keep_nobody_from_being_answered(transfers, monkeypatch):
    from checkpoint_engine import _peer_sockets

    monkeypatch.setattr(_peer_sockets, "_MOST_SOCKETS", 20)
    owner = transfers()
    for port in range(20000, 21100):
        owner.send(f"127.0.0.1 1 {port}", b"nobody hears this")
    assert len(owner._senders) == 20
    hears_from(owner, transfers())
    for nonsense in ("127.0.0.1 1 none", "no such host 1"):
        with pytest.raises((ConnectionError, ValueError)):
            owner.send(nonsense, b"nobody hears this")
    hears_from(owner, transfers())
    assert len(owner._senders) <= 20


def hears_from(sender, receiver):
    heard = []
    receiver.set_receiver(heard.append)
    sender.send(receiver.address, b"hello")
    wait_until(lambda: heard == [b"hello"])


def test_threads_without_calls_end(transfers, monkeypatch):
    from checkpoint_engine import _peer_calls

    monkeypatch.setattr(_peer_calls, "_IDLE_SECONDS", 0.05)
    reader, owner = transfers(), transfers()
    memory, address = registered(owner, b"12345678")
    place = bytearray(8)
    to = ctypes.addressof(ctypes.c_char.from_buffer(place))
    for _ in range(2):
        place[:] = bytes(8)
        reader.read(owner.address, [(address, to, 8)], 60, lambda: False)
        assert place == memory
        wait_until(lambda: "mooncake" not in [thread.name for thread in threading.enumerate()])


def test_the_address_is_what_the_user_says(monkeypatch):
    from checkpoint_engine import get_ip
    from checkpoint_engine.errors import InvalidArgumentError

    assert get_ip()
    monkeypatch.setenv("PS_HOST_IP", "127.0.0.1")
    assert get_ip() == "127.0.0.1"
    monkeypatch.setenv("PS_HOST_IP", "203.0.113.1")
    with pytest.raises(InvalidArgumentError, match="203.0.113.1"):
        get_ip()

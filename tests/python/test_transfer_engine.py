"""Transfer engines of the application's own that do what they must not: the update fails, the process and the next update do not."""
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("numpy", reason="the weights are numpy's")

# In a process of its own, which an exception on a thread of the engine would end.
SCRIPT = """
    import ctypes, os
    import numpy
    from checkpoint_engine.ps import ParameterServer
    from checkpoint_engine.worker import update_weights_from_ipc

    class Engine:
        everybody = {}
        broken = True
        kept = []

        def __init__(self, address):
            self.address = address
            self.everybody[address] = self

        def register_memory(self, address, size): pass
        def deregister_memory(self, address): pass

        def read(self, address, pieces, seconds, cancelled):
            self.kept.append(cancelled)
            if pieces and self.broken:
                raise OSError("cannot read \\udcff")
            for remote, local, size in pieces:
                ctypes.memmove(local, remote, size)

        def has_abandoned_reads(self, address):
            return ANSWER if self.broken else False

        def send(self, address, message):
            other = self.everybody[address]
            other.receiver(message)

        def set_receiver(self, receiver):
            if receiver is not None:  # and never lets go of it
                self.receiver = receiver

    def server(role):
        return ParameterServer(rank=0, world_size=1, device="host", job=f"{role}-{os.getpid()}", transfer_engine=Engine(role))

    found = {}
    def receive(addresses):
        update_weights_from_ipc(None, addresses[0][1], None, timeout=30,
                                run=lambda weights: found.update((name, numpy.array(tensor)) for name, tensor in weights))

    with server("owner") as owner, server("target") as target:
        owner.register_checkpoint("c", named_tensors={"a": numpy.arange(1000)})
        owner.gather_metas("c")
        target.load_metas(owner.export_metas())
        try:
            target.update("c", receive, timeout=30)
        except RuntimeError as error:
            print(error)
        print("no longer read:", all(cancelled() for cancelled in Engine.kept))
        Engine.broken = False
        target.update("c", receive, timeout=30)
        print("sum", found["a"].sum())
    for engine in Engine.everybody.values():
        engine.receiver(b"target\\0instance\\0message")
"""


@pytest.mark.parametrize("answer, complains", [("False", False), ("None", True), ("'yes'", True), ("1 / 0", True)])
def test_an_engine_that_does_wrong_fails_the_update_alone(answer, complains):
    code = textwrap.dedent(SCRIPT).replace("ANSWER", answer)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8:strict"})
    error, *rest = done.stdout.splitlines() or [""]
    assert done.returncode == 0, done.stderr
    assert "read() of the transfer engine raised OSError: cannot read \\udcff" in error, error
    assert rest == ["no longer read: True", "sum 499500"], done.stdout + done.stderr
    assert done.stderr.count("has_abandoned_reads()") == complains, done.stderr


def test_an_address_that_is_no_text_is_refused():
    from checkpoint_engine.ps import ParameterServer

    class Engine:
        address = None

    with pytest.raises(ValueError, match="address of the transfer engine"):
        ParameterServer(rank=0, world_size=1, device="host", job=f"no-address-{os.getpid()}", transfer_engine=Engine())

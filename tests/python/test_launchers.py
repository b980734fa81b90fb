"""Which rank, and which GPU, a ParameterServer takes: from its arguments and from the variables of launchers."""
import os
import subprocess
import sys
import textwrap
import threading
import types

import pytest

from checkpoint_engine import _torch_group
from checkpoint_engine.ps import ParameterServer
from conftest import CLEAN_ENV, free_port

PRINT_RANK = """
    import sys
    from checkpoint_engine import _core
    from checkpoint_engine.ps import ParameterServer

    def join(options):  # in the place of a job of so many ranks
        print(options.rank, options.world_size, options.local_rank)
        raise SystemExit

    _core.ParameterServer = join
    ParameterServer(**eval(sys.argv[1]))
"""

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}


def printed(arguments, variables):
    """Rank, world size and local rank that the engine is given."""
    clean = {name: value for name, value in CLEAN_ENV.items() if not name.startswith(("OMPI_", "SLURM_"))}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PRINT_RANK), repr(arguments)], capture_output=True, text=True,
                          timeout=60, env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("variables", [TORCHRUN, OPEN_MPI, SLURM], ids=["torchrun", "Open MPI", "Slurm"])
def test_the_rank_of_every_launcher_chooses_the_gpu(variables):
    # None: the engine asks the launcher itself.
    assert printed({"gpu_count": 4}, variables) == ["None", "None", "1"]
    assert printed({"gpu_count": 8}, variables) == ["None", "None", "5"]
    assert printed({}, variables) == ["None", "None", "None"]
    assert printed({"world_size": 12}, variables) == ["5", "12", "None"]
    assert printed({"rank": 0, "gpu_count": 4}, variables) == ["0", "16", "0"]
    assert printed({"rank": 7, "world_size": 8, "gpu_count": 4}, variables) == ["7", "8", "3"]


def test_without_a_launcher_it_is_a_job_of_one():
    assert printed({"gpu_count": 8}, {}) == ["None", "None", "0"]


@pytest.mark.parametrize("options, local_ranks", [({}, [0, 1]), ({"gpu_count": 1}, [0, 0]), ({"gpu_count": 2}, [0, 1])])
def test_torchs_current_gpu_is_the_engines(monkeypatch, options, local_ranks):
    chosen = {}
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 8, set_device=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    turns, port, job = threading.Lock(), free_port(), f"launchers-{os.getpid()}-{len(options)}-{local_ranks}"

    def rank(number):
        with ParameterServer(rank=number, world_size=2, master_addr="127.0.0.1", master_port=port, device="host", job=job,
                             **options) as server, turns:
            torch.cuda.set_device = lambda gpu: chosen.update({number: gpu})
            _torch_group.use_own_gpu(server._server)

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    assert [chosen[number] for number in range(2)] == local_ranks
    # Of a host of eight GPUs that has the second half of a job's eight ranks.
    torch.cuda.set_device = lambda gpu: chosen.update(last=gpu)
    _torch_group.use_own_gpu(types.SimpleNamespace(rank=5, local_rank=1))
    assert chosen["last"] == 1

"""
The C++ engine. Private: use checkpoint_engine.ps and checkpoint_engine.worker.
"""

from collections.abc import Callable, Mapping, Sequence


def set_log(sink: object | None) -> None:
    """
    Calls sink(level, text) for every line, on any thread; None drops them.
    """

def type_and_text_of(exception: object) -> str:
    """
    As in "ValueError: the text", in UTF-8 whatever it holds; never raises.
    """

def torch_itemsize(dtype: str) -> int: ...

class RunningCall:
    """A call to an engine that is under way."""

    @property
    def addresses(self) -> list[tuple[str, str]]:
        """(key, address) of every rank of the job, in rank order."""

    @property
    def cancelled(self) -> bool:
        """The update is over: nobody waits."""

    def finish(self, error: str | None) -> None:
        """
        The engine has answered; with an error, the update fails on every rank. Only the first one counts.
        """

def update_engine(url: str, addresses: Mapping[str, str], timeout_seconds: float, uds: str, token: str) -> None:
    """Tells the engine at `url` to update, and returns when it has answered."""

def rdma_devices(local_rank: int, local_ranks: int, device_uuid: str = '') -> list[str]:
    """
    The RDMA devices of a rank as "NAME:PORT", by the rules of docs/p2p.md; none where there is no RDMA.
    """

def own_address(advertise: str = '') -> str:
    """
    Under which others reach this host, by the rules of docs/p2p.md; `advertise` is an address or an interface.
    """

class ServerOptions:
    """See ParameterServerOptions of the C++ API."""

    def __init__(self) -> None: ...

    @property
    def rank(self) -> int | None: ...

    @rank.setter
    def rank(self, value: int | None) -> None: ...

    @property
    def world_size(self) -> int | None: ...

    @world_size.setter
    def world_size(self, value: int | None) -> None: ...

    @property
    def local_rank(self) -> int | None: ...

    @local_rank.setter
    def local_rank(self, value: int | None) -> None: ...

    @property
    def rendezvous(self) -> str: ...

    @rendezvous.setter
    def rendezvous(self, arg: str, /) -> None: ...

    @property
    def external_hub(self) -> bool: ...

    @external_hub.setter
    def external_hub(self, arg: bool, /) -> None: ...

    @property
    def job(self) -> str: ...

    @job.setter
    def job(self, arg: str, /) -> None: ...

    @property
    def secret(self) -> str: ...

    @secret.setter
    def secret(self, arg: str, /) -> None: ...

    @property
    def host_id(self) -> str: ...

    @host_id.setter
    def host_id(self, arg: str, /) -> None: ...

    @property
    def join_timeout_seconds(self) -> float: ...

    @join_timeout_seconds.setter
    def join_timeout_seconds(self, arg: float, /) -> None: ...

    @property
    def heartbeat_timeout_seconds(self) -> float: ...

    @heartbeat_timeout_seconds.setter
    def heartbeat_timeout_seconds(self, arg: float, /) -> None: ...

    @property
    def hub_linger_seconds(self) -> float: ...

    @hub_linger_seconds.setter
    def hub_linger_seconds(self, arg: float, /) -> None: ...

    @property
    def collective_timeout_seconds(self) -> float: ...

    @collective_timeout_seconds.setter
    def collective_timeout_seconds(self, arg: float, /) -> None: ...

    @property
    def device(self) -> str: ...

    @device.setter
    def device(self, arg: str, /) -> None: ...

    @property
    def collective(self) -> str: ...

    @collective.setter
    def collective(self, arg: str, /) -> None: ...

    @property
    def keep_buffers(self) -> bool: ...

    @keep_buffers.setter
    def keep_buffers(self, arg: bool, /) -> None: ...

    @property
    def ring_bytes(self) -> int: ...

    @ring_bytes.setter
    def ring_bytes(self, arg: int, /) -> None: ...

    @property
    def bucket_bytes(self) -> int: ...

    @bucket_bytes.setter
    def bucket_bytes(self, arg: int, /) -> None: ...

    @property
    def chunk_bytes(self) -> int: ...

    @chunk_bytes.setter
    def chunk_bytes(self, arg: int, /) -> None: ...

    @property
    def memory_fraction(self) -> float: ...

    @memory_fraction.setter
    def memory_fraction(self, arg: float, /) -> None: ...

    @property
    def load_threads(self) -> int: ...

    @load_threads.setter
    def load_threads(self, arg: int, /) -> None: ...

    @property
    def advertise(self) -> str: ...

    @advertise.setter
    def advertise(self, arg: str, /) -> None: ...

    def use_transfer_engine(self, engine: object) -> None: ...

def field_metas(json: str) -> str:
    """
    What export_metas gives, in the JSON of the Python package checkpoint-engine 0.4.
    """

def launched_rank() -> tuple[int | None, int | None]:
    """Rank and world size in the variables of torchrun, Open MPI or Slurm."""

class PreparedUpdate:
    """An update that has touched no engine yet. Dropping it gives it up."""

class ParameterServer:
    """See ParameterServer of the C++ API."""

    def __init__(self, options: ServerOptions) -> None: ...

    def close(self) -> None: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def checkpoint_name(self) -> str: ...

    def register_checkpoint(self, name: str, files: Sequence[str], tensors: Sequence[tuple[str, str, Sequence[int], int, int]], use_shared_pool: bool, in_place: bool, keep_alive: object | None) -> None: ...

    def unregister_checkpoint(self, name: str, force: bool) -> None: ...

    def gather_metas(self, name: str) -> None: ...

    def export_metas(self) -> str: ...

    def load_metas(self, json: str) -> None: ...

    def offer_loaded(self) -> None: ...

    def prepare(self, name: str, recipients: Sequence[int], instance_size: int, timeout_seconds: float, verify: bool, engine_answer_means_done: bool) -> PreparedUpdate: ...

    def commit(self, update: PreparedUpdate, start_call: Callable) -> dict: ...

    def abort(self, update: PreparedUpdate, cause: str) -> None: ...

    def barrier(self, timeout_seconds: float) -> None: ...

    def all_gather(self, mine: bytes, timeout_seconds: float) -> list[bytes]: ...

class Hub:
    """Where the ranks of a process group meet."""

    def __init__(self, bind_host: str, world_size: int, secret: str) -> None: ...

    @property
    def port(self) -> int: ...

    def close(self, timeout_seconds: float) -> None:
        """Returns when every rank that joined has left."""

class ProcessGroup:
    """See ProcessGroup of the C++ code."""

    def __init__(self, rank: int, world_size: int, hub: str, job: str, secret: str, timeout_seconds: float) -> None: ...

    def leave(self) -> None: ...

    def barrier(self, tag: str, ranks: Sequence[int], timeout_seconds: float) -> None: ...

    def all_gather(self, tag: str, ranks: Sequence[int], mine: bytes, timeout_seconds: float) -> list[bytes]: ...

    def broadcast(self, tag: str, ranks: Sequence[int], source: int, address: int, bytes: int, keep_alive: object, timeout_seconds: float) -> None: ...

class RingBytes:
    """
    The bytes of a tensor in the ring; has the buffer protocol for host rings.
    """

    @property
    def address(self) -> int: ...

    @property
    def on_device(self) -> bool: ...

    def __len__(self) -> int: ...

def is_native_address(address: str) -> bool:
    """Whether the rank at `address` is one of ours."""

def receive(address: str, load: Callable, finish: Callable, timeout_seconds: float, verify: bool, secret: str) -> dict:
    """
    Receives one update. load([(name, dtype, shape, RingBytes)]) and finish() run on this thread; what they raise ends the update on every rank, and is raised here.
    """

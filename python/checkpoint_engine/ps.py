"""The sending side: one ParameterServer per rank holds a part of a checkpoint and puts it into running inference engines."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from . import _core, _log
from ._default_groups import DefaultGroups
from ._hosts import host_port, master_host
from .data_types import MemoryBufferMetaList, Metas, metas_json
from .errors import CheckpointEngineError, InvalidArgumentError
from .report import UpdateReport
from .tensors import describe

__all__ = ["ParameterServer", "PreparedUpdate", "RequestFunction"]

RequestFunction = Callable[[list[tuple[str, str]]], object]
"""Tells an engine to update; see ParameterServer.update."""


def _text_of(metas: Mapping[int, MemoryBufferMetaList] | str) -> str:
    return metas if isinstance(metas, str) else metas_json(metas)


def _seconds(time: timedelta | float) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else float(time)


class PreparedUpdate:
    """An update that is ready to run and has touched no engine yet.

    Give it to ParameterServer.commit or abort; as a context manager, and when it is dropped, it is given up on every rank
    unless it was committed.
    """

    def __init__(self, update: _core.PreparedUpdate):
        self._update: _core.PreparedUpdate | None = update

    def __enter__(self) -> PreparedUpdate:
        return self

    def __exit__(self, *_: object) -> None:
        self._update = None

    def _take(self) -> _core.PreparedUpdate:
        if self._update is None:
            raise InvalidArgumentError("this update was committed or given up already", "invalid argument")
        update, self._update = self._update, None
        return update


def _close(server: _core.ParameterServer, transfer_engine: Any) -> None:
    server.close()
    if hasattr(transfer_engine, "close"):
        transfer_engine.close()


class ParameterServer:
    """One rank of a job. All ranks of the job make the same calls.

    Calls that wait let other Python threads run, and end with KeyboardInterrupt within a second of Ctrl-C: an update ends
    on every rank then. Errors are CheckpointEngineError and its subclasses. Calls of one server run one after the other;
    one that is interrupted while it waits for another thread's does nothing, and the other one goes on.

    Args:
        rank, world_size: from the variables of torchrun, Open MPI or Slurm where they are None. 0 is a rank.
        auto_pg: the default process group, if init_process_group has made it, is destroyed after each update, commit and abort.
        gpu_count: ranks of one host; this rank uses the GPU number rank % gpu_count. None: the launcher's local rank, else
            its number among the ranks of its host.
        mem_fraction: of the free memory, which an update may use; None: PS_MEM_FRACTION, else 0.9.
        master_addr, master_port: where rank 0 listens. None: MASTER_ADDR, and MASTER_PORT + 1.
        device: "auto" (a GPU where there is one), "cuda" or "host".
        job: jobs of different names ignore each other on one host.
        secret: ranks and our workers of a job must have the same.
        collective: how weights spread on a host: "auto", "peer", "nccl" (GPUs), "chain" (through host memory).
        keep_buffers: an update's buffers stay until the checkpoint is unregistered, which saves milliseconds of the next.
        ring_bytes, bucket_bytes, chunk_bytes: sizes of an update's buffers; 0: chosen.
        join_timeout: seconds (or a timedelta) that ranks wait for each other here.
        transfer_engine: reads other ranks' memory instead of UCX: a checkpoint_engine.mooncake.MooncakeTransfer, which is
            closed with the server. The ranks of a job, and of those whose metas it loads, need the same kind.

    Returns when all ranks of the job have joined.
    """

    shared_memory_pool_name = "__shared_memory_pool__"

    def __init__(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        auto_pg: bool = True,
        gpu_count: int | None = None,
        mem_fraction: float | None = None,
        master_addr: str | None = None,
        master_port: int | None = None,
        device: str = "auto",
        job: str = "default",
        secret: str = "",
        collective: str = "auto",
        keep_buffers: bool = False,
        ring_bytes: int = 0,
        bucket_bytes: int = 0,
        chunk_bytes: int = 0,
        join_timeout: timedelta | float = 600.0,
        external_hub: bool = False,
        load_threads: int = 0,
        transfer_engine: Any = None,
    ):
        options = _core.ServerOptions()
        options.rank, options.world_size = _rank_and_size(rank, world_size)
        if gpu_count is not None:
            options.local_rank = _local_rank(options.rank, gpu_count)
        options.memory_fraction = mem_fraction or 0.0
        options.rendezvous = _rendezvous(master_addr, master_port)
        options.device = device
        options.job = job
        options.secret = secret
        options.collective = collective
        options.keep_buffers = keep_buffers
        options.ring_bytes = ring_bytes
        options.bucket_bytes = bucket_bytes
        options.chunk_bytes = chunk_bytes
        options.join_timeout_seconds = _seconds(join_timeout)
        options.external_hub = external_hub
        options.load_threads = load_threads
        if transfer_engine is not None:
            options.use_transfer_engine(transfer_engine)
        self._device = device
        self._auto_pg = auto_pg
        self._server = _core.ParameterServer(options)
        self._groups = DefaultGroups(self._server, master_addr, secret)
        # At the end of the process too: ranks that leave are not taken for dead.
        self._finalizer = weakref.finalize(self, _close, self._server, transfer_engine)

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the job and frees the memory; rank 0 waits until the others have left too. Again is fine."""
        self._finalizer()

    @property
    def rank(self) -> int:
        return self._server.rank

    @property
    def world_size(self) -> int:
        return self._server.world_size

    def register_checkpoint(
        self,
        checkpoint_name: str,
        *,
        files: Sequence[str | os.PathLike[str]] | None = None,
        named_tensors: Mapping[str, Any] | None = None,
        use_shared_memory_pool: bool = False,
        use_inplace_pin_memory: bool = True,
    ) -> None:
        """Reads or copies this rank's part into host memory, with a digest of every tensor. Not collective.

        Args:
            checkpoint_name: a name that is registered already is refused.
            files: safetensors files.
            named_tensors: full, unsharded tensors by their Hugging Face names: torch's (any device) or numpy's. They win
                over files of the same name, and are copied: the caller may change or free them on return.
            use_shared_memory_pool: reuse the memory of the checkpoint that was registered this way before.
            use_inplace_pin_memory: files in /dev/shm are pinned where they are, and deleted by gather_metas; not where
                use_shared_memory_pool is True, which copies them.
        """
        paths = [os.fspath(file) for file in files or []]
        for path in paths:
            if not path.endswith(".safetensors"):
                raise InvalidArgumentError(f"{path}: only .safetensors files can be registered", "invalid argument")
        tensors, keep_alive = describe(named_tensors or {}, gpus=self._device != "host")
        self._server.register_checkpoint(
            checkpoint_name, paths, tensors, use_shared_memory_pool, use_inplace_pin_memory, keep_alive
        )

    def unregister_checkpoint(self, checkpoint_name: str, force: bool = False) -> None:
        """Frees a checkpoint's memory; a name that is not registered is a warning in the log.

        Args:
            force: free the shared memory pool, too, if the checkpoint uses it.
        """
        try:
            self._server.unregister_checkpoint(checkpoint_name, force)
        except CheckpointEngineError as error:
            if error.code != "not found":
                raise
            _log.logger.warning("%s", error)

    def gather_metas(self, checkpoint_name: str) -> None:
        """Collective over the job: every rank learns all tensors of the checkpoint. Needed before update()."""
        self._server.gather_metas(checkpoint_name)

    def get_metas(self) -> Metas:
        """What gather_metas or load_metas has learned, by rank; can be pickled. Ranks without tensors are left out.

        Empty before that, and when what was gathered is unregistered.
        """
        return Metas.from_json(self._server.export_metas()) if self._server.checkpoint_name else Metas()

    def load_metas(self, metas: Mapping[int, MemoryBufferMetaList] | str | Sequence[Mapping[int, MemoryBufferMetaList] | str]) -> None:
        """Takes metas of another job: what its get_metas gave, also as a plain dict, or the JSON of export_metas or GET /v1/metas.

        Updates of it may give it any name. Also the metas of the field's package itself (docs/p2p.md), which have no digests: its
        updates need verify=False.
        A list of such is for jobs that hold the same checkpoint: they share the work and stand in for each other.
        """
        if isinstance(metas, (str, Mapping)):
            self._server.load_metas(_text_of(metas))
        else:
            self._server.load_metas(f"[{','.join(_text_of(one) for one in metas)}]")

    def offer_loaded(self) -> None:
        """Keeps what updates bring of the loaded checkpoint and offers it to other jobs meanwhile, by export_metas. Collective."""
        self._server.offer_loaded()

    def export_metas(self) -> str:
        """The metas as JSON with a version: for files that outlive a job, and for other languages."""
        return self._server.export_metas()

    def init_process_group(self, *, timeout: timedelta = timedelta(minutes=10)) -> None:
        """Makes a default process group over the job's ranks where there is none: torch's where torch is loaded, and that of
        checkpoint_engine.distributed where it is another; after use_backend("vllm_nccl") that alone.

        The engine itself needs none; programs that call collectives between the calls do. Collective.
        """
        self._groups.make(timeout)

    def store_based_barrier(self, timeout: timedelta = timedelta(minutes=5)) -> None:
        """Waits until every rank of the job has called it."""
        self._server.barrier(_seconds(timeout))

    def update(
        self,
        checkpoint_name: str,
        req_func: RequestFunction,
        *,
        timeout: timedelta | float = timedelta(minutes=10),
        ranks: Sequence[int] | None = None,
        inference_parallel_size: int | None = None,
        verify: bool = True,
        report: Callable[[UpdateReport], object] | None = None,
    ) -> None:
        """Updates engines in place. Collective over the job; over on return, on every rank, with the same outcome.

        Args:
            req_func: called with [(device uuid, address)] of all ranks of the job in rank order, on every updating rank, in
                a thread of its own. It tells an engine to update and returns when the engine has answered; most ranks have
                nobody to tell and return at once. An exception fails the update on every rank, with its text. Ranks that
                are not updated have empty strings.
            timeout: for the whole update.
            ranks: only these are updated, out of the memory of all; the others wait for the end. None or []: all.
            inference_parallel_size: workers of one engine. None: PS_INSTANCE_SIZE, else all updated ranks are one engine.
            verify: tensors are checked against their digests before they are loaded.
            report: called with what this rank did, after success.
        """
        if not callable(req_func):
            raise InvalidArgumentError(f"req_func is {req_func!r}, which cannot be called", "invalid argument")
        try:
            prepared = self.prepare(
                checkpoint_name,
                timeout=timeout,
                ranks=ranks,
                inference_parallel_size=inference_parallel_size,
                verify=verify,
            )
            done = self.commit(prepared, req_func)
        finally:
            self._leave_groups()
        if report is not None:
            report(done)

    def prepare(
        self,
        checkpoint_name: str,
        *,
        timeout: timedelta | float = timedelta(minutes=10),
        ranks: Sequence[int] | None = None,
        inference_parallel_size: int | None = None,
        verify: bool = True,
    ) -> PreparedUpdate:
        """The part of an update that needs no engine: plans, allocates, and fills the first buffers. Collective.

        The arguments are those of update(); the timeout is for commit() too.
        """
        return PreparedUpdate(
            self._server.prepare(
                checkpoint_name,
                list(ranks or []),
                _instance_size(inference_parallel_size),
                _seconds(timeout),
                verify,
                False,
            )
        )

    def commit(self, prepared: PreparedUpdate, req_func: RequestFunction) -> UpdateReport:
        """Calls the engines and updates them. Collective. On return, also by an exception, the update is over."""
        call = _CallThread(req_func)
        try:
            return UpdateReport.from_fields(self._server.commit(prepared._take(), call.start))
        except Exception as error:
            if call.raised is not None and error.__cause__ is None:
                raise error from call.raised
            raise
        finally:
            self._leave_groups()

    def abort(self, prepared: PreparedUpdate, cause: str = "given up by its caller") -> None:
        """Gives a prepared update up on every rank, with this cause."""
        try:
            self._server.abort(prepared._take(), cause)
        finally:
            self._leave_groups()

    def _leave_groups(self) -> None:
        if self._auto_pg:
            self._groups.end()


class _CallThread:
    """Runs req_func on a daemon thread: one that never returns keeps no process alive."""

    def __init__(self, req_func: RequestFunction):
        self._req_func = req_func
        self.raised: BaseException | None = None

    def start(self, call: _core.RunningCall) -> None:
        threading.Thread(target=self._run, args=(call,), name="checkpoint-engine-req-func", daemon=True).start()

    def _run(self, call: _core.RunningCall) -> None:
        failure: str | None = "req_func raised"
        try:
            self._req_func(call.addresses)
            failure = None
        except BaseException as error:  # SystemExit too: whatever ended the call, the update must hear of it
            self.raised = error
            failure = f"req_func raised {_core.type_and_text_of(error)}"
            _log.logger.debug("req_func raised", exc_info=True)
        finally:
            call.finish(failure)


def _rank_and_size(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """One that is not given comes from the launcher when the other is given; of both the engine asks itself."""
    if (rank is None) == (world_size is None):
        return rank, world_size
    launched_rank, launched_size = _core.launched_rank()
    return launched_rank if rank is None else rank, launched_size if world_size is None else world_size


def _local_rank(rank: int | None, gpu_count: int) -> int:
    if gpu_count < 1:
        raise InvalidArgumentError(f"gpu_count is {gpu_count}; it must be at least 1", "invalid argument")
    if rank is None:
        rank = _core.launched_rank()[0] or 0  # without a launcher it is a job of one rank
    return rank % gpu_count


def _rendezvous(master_addr: str | None, master_port: int | None) -> str:
    """ "host:port" of the hub; empty: the engine finds it in the environment."""
    if master_addr is None and master_port is None:
        return ""
    port = master_port
    if port is None and "MASTER_PORT" in os.environ:
        port = int(os.environ["MASTER_PORT"]) + 1
    if not (master_addr or os.environ.get("MASTER_ADDR")) or port is None:
        raise InvalidArgumentError(
            "master_addr and master_port belong together: give both, or set MASTER_ADDR and MASTER_PORT",
            "invalid argument",
        )
    return host_port(master_host(master_addr), port)


def _instance_size(inference_parallel_size: int | None) -> int:
    if inference_parallel_size is None:
        return 0
    if inference_parallel_size < 1:
        raise InvalidArgumentError(
            f"inference_parallel_size is {inference_parallel_size}; it must be at least 1", "invalid argument"
        )
    return inference_parallel_size


if __name__ == "__main__":
    from .__main__ import main

    main()

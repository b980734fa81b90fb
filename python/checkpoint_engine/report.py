"""What a rank did in an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """A stage of an update; stages overlap."""

    name: str
    seconds: float
    bytes: int


@dataclass(frozen=True)
class UpdateReport:
    """What one rank did in one update. Times in seconds, sizes in bytes."""

    rank: int
    epoch: int
    checkpoint_name: str
    stages: tuple[Stage, ...]
    total_tensors: int  # of the checkpoint
    total_bytes: int
    filled_bytes: int  # copied out of this rank's memory
    received_bytes: int  # taken from other ranks' memory
    loaded_bytes: int  # acknowledged by this rank's worker
    loaded_tensors: int
    verified_tensors: int
    buckets: int
    passes: int
    first_bucket_seconds: float  # from the engine's call to the first bucket given to the worker
    commit_seconds: float  # how long the engine was held
    update_seconds: float  # prepare and commit
    wire: str  # "native", "stock", or empty where this rank has no worker
    ring_bytes: int
    staging_bytes: int
    context_bytes: int  # device memory of this process' CUDA context; 0 where it had one before
    allocated_bytes: int  # of ring and staging, in this update
    kept_bytes: int  # for the next (keep_buffers)
    streams_made: int  # with their events, and tables of digests; 0 from the second update on

    @classmethod
    def from_fields(cls, fields: dict) -> UpdateReport:
        stages = tuple(Stage(*stage) for stage in fields.pop("stages"))
        return cls(stages=stages, **fields)

"""Puts new weights into running inference engines.

The names are those of the Python package checkpoint-engine 0.4, whose users run on this one unchanged (docs/migrating.md).
"""

from ._core import __version__
from .data_types import (
    BucketRange,
    DataToGather,
    H2DBucket,
    MemoryBuffer,
    MemoryBufferMetaList,
    MemoryBufferMetas,
    ParameterMeta,
)
from .errors import CheckpointEngineError, DeadlineExceededError, InvalidArgumentError, PeerLostError
from .ps import ParameterServer, PreparedUpdate
from .report import Stage, UpdateReport
from .worker import FlattenedTensorMetadata, VllmColocateWorkerExtension, update_weights_from_ipc

__all__ = [
    "BucketRange",
    "CheckpointEngineError",
    "DataToGather",
    "DeadlineExceededError",
    "FlattenedTensorMetadata",
    "H2DBucket",
    "InvalidArgumentError",
    "MemoryBuffer",
    "MemoryBufferMetaList",
    "MemoryBufferMetas",
    "ParameterMeta",
    "ParameterServer",
    "PeerLostError",
    "PreparedUpdate",
    "Stage",
    "UpdateReport",
    "VllmColocateWorkerExtension",
    "__version__",
    "update_weights_from_ipc",
]

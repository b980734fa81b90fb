"""Puts new weights into running inference engines.

The names are those of the Python package checkpoint-engine 0.4, whose users run on this one unchanged (docs/migrating.md).
"""

from ._core import __version__
from .api import request_inference_to_update
from .data_types import (
    BucketRange,
    DataToGather,
    H2DBucket,
    MemoryBuffer,
    MemoryBufferMetaList,
    MemoryBufferMetas,
    ParameterMeta,
)
from .device_utils import DeviceManager, get_ip, npu_generate_uuid
from .errors import CheckpointEngineError, DeadlineExceededError, InvalidArgumentError, PeerLostError
from .p2p_store import P2PStore
from .ps import ParameterServer, PreparedUpdate
from .report import Stage, UpdateReport
from .worker import FlattenedTensorMetadata, VllmColocateWorkerExtension, update_weights_from_ipc

__all__ = [
    "BucketRange",
    "CheckpointEngineError",
    "DataToGather",
    "DeadlineExceededError",
    "DeviceManager",
    "FlattenedTensorMetadata",
    "H2DBucket",
    "InvalidArgumentError",
    "MemoryBuffer",
    "MemoryBufferMetaList",
    "MemoryBufferMetas",
    "P2PStore",
    "ParameterMeta",
    "ParameterServer",
    "PeerLostError",
    "PreparedUpdate",
    "Stage",
    "UpdateReport",
    "VllmColocateWorkerExtension",
    "__version__",
    "get_ip",
    "npu_generate_uuid",
    "request_inference_to_update",
    "update_weights_from_ipc",
]

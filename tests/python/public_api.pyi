# checkpoint_engine
class BucketRange(tuple):
    idx: int
    offset: int
    size: int
class CheckpointEngineError(RuntimeError):
    def __init__(self, message: 'str', code: 'str' = 'internal', rank: 'int | None' = None): ...
class DataToGather(MemoryBufferMetaList):
    host_ip: str
    device_uuid: str
class DeadlineExceededError(CheckpointEngineError, TimeoutError):
    ...
class DeviceManager:
    def __init__(self) -> 'None': ...
    backend: str
    device_module: Any
class FlattenedTensorMetadata(dict):
    name: str
    shape: Any
    dtype: Any
    offset: int
class H2DBucket:
    size: int
    ranges: list[BucketRange]
    items: list[ParameterMeta]
class InvalidArgumentError(CheckpointEngineError, ValueError):
    ...
class MemoryBuffer:
    buffer: Any
    size: int
    metas: list[ParameterMeta]
    manually_pinned: bool
class MemoryBufferMetaList:
    p2p_store_addr: str | None
    memory_buffer_metas_list: list[MemoryBufferMetas]
    rdma_device: str
class MemoryBufferMetas:
    metas: list[ParameterMeta]
    ptr: int
    size: int
class P2PStore:
    def __init__(self, *_: 'object'): ...
class ParameterMeta:
    name: str
    dtype: Any
    shape: Any
    aligned_size: int
class ParameterServer:
    def __init__(self, *, rank: 'int | None' = None, world_size: 'int | None' = None, auto_pg: 'bool' = True, gpu_count: 'int | None' = None, mem_fraction: 'float | None' = None, master_addr: 'str | None' = None, master_port: 'int | None' = None, device: 'str' = 'auto', job: 'str' = 'default', secret: 'str' = '', collective: 'str' = 'auto', keep_buffers: 'bool' = False, ring_bytes: 'int' = 0, bucket_bytes: 'int' = 0, chunk_bytes: 'int' = 0, join_timeout: 'timedelta | float' = 600.0, external_hub: 'bool' = False, load_threads: 'int' = 0): ...
    def abort(self, prepared: 'PreparedUpdate', cause: 'str' = 'given up by its caller') -> 'None': ...
    def close(self) -> 'None': ...
    def commit(self, prepared: 'PreparedUpdate', req_func: 'RequestFunction') -> 'UpdateReport': ...
    def export_metas(self) -> 'str': ...
    def gather_metas(self, checkpoint_name: 'str') -> 'None': ...
    def get_metas(self) -> 'dict[int, MemoryBufferMetaList]': ...
    def init_process_group(self, *, timeout: 'timedelta' = datetime.timedelta(seconds=600)) -> 'None': ...
    def load_metas(self, metas: 'dict[int, MemoryBufferMetaList] | str') -> 'None': ...
    def prepare(self, checkpoint_name: 'str', *, timeout: 'timedelta | float' = datetime.timedelta(seconds=600), ranks: 'Sequence[int] | None' = None, inference_parallel_size: 'int | None' = None, verify: 'bool' = True) -> 'PreparedUpdate': ...
    rank: int
    def register_checkpoint(self, checkpoint_name: 'str', *, files: 'Sequence[str | os.PathLike[str]] | None' = None, named_tensors: 'Mapping[str, Any] | None' = None, use_shared_memory_pool: 'bool' = False, use_inplace_pin_memory: 'bool' = True) -> 'None': ...
    def store_based_barrier(self, timeout: 'timedelta' = datetime.timedelta(seconds=300)) -> 'None': ...
    def unregister_checkpoint(self, checkpoint_name: 'str', force: 'bool' = False) -> 'None': ...
    def update(self, checkpoint_name: 'str', req_func: 'RequestFunction', *, timeout: 'timedelta | float' = datetime.timedelta(seconds=600), ranks: 'Sequence[int] | None' = None, inference_parallel_size: 'int | None' = None, verify: 'bool' = True, report: 'Callable[[UpdateReport], object] | None' = None) -> 'None': ...
    world_size: int
class PeerLostError(CheckpointEngineError, ConnectionError):
    ...
class PreparedUpdate:
    def __init__(self, update: '_core.PreparedUpdate'): ...
class Stage(tuple):
    name: str
    seconds: float
    bytes: int
class UpdateReport:
    rank: int
    epoch: int
    checkpoint_name: str
    stages: tuple[Stage, ...]
    total_tensors: int
    total_bytes: int
    filled_bytes: int
    received_bytes: int
    loaded_bytes: int
    loaded_tensors: int
    verified_tensors: int
    buckets: int
    passes: int
    first_bucket_seconds: float
    commit_seconds: float
    update_seconds: float
    wire: str
    ring_bytes: int
    staging_bytes: int
    allocated_bytes: int
    kept_bytes: int
class VllmColocateWorkerExtension:
    def update_weights_from_ipc(self, zmq_handles: 'dict[str, str]') -> 'None': ...
__version__: str
def get_ip() -> 'str': ...
def npu_generate_uuid() -> 'str': ...
def request_inference_to_update(url: 'str', socket_paths: 'Mapping[str, str]', timeout: 'float' = 300.0, uds: 'str | None' = None) -> 'None': ...
def update_weights_from_ipc(zmq_ctx: 'Any', zmq_handle: 'str', device_id: 'int | None', *, run: 'Callable[[Weights], object]', post_hook: 'Callable[[], object] | None' = None, timeout: 'float' = 600.0, verify: 'bool' = True, secret: 'str | None' = None) -> 'None': ...

# checkpoint_engine.ps
RequestFunction: collections.abc.Callable[[list[tuple[str, str]]], object]

# checkpoint_engine.worker

# checkpoint_engine.api

# checkpoint_engine.distributed
def all_gather_object(object_list: 'list[Any]', obj: 'Any', group: 'Any' = None) -> 'None': ...
def all_reduce(tensor: 'Any', op: 'Any' = None, group: 'Any' = None, **kwargs: 'Any') -> 'None': ...
def barrier(group: 'Any' = None, **kwargs: 'Any') -> 'None': ...
def broadcast(tensor: 'Any', src: 'int' = 0, group: 'Any' = None, **kwargs: 'Any') -> 'None': ...
def destroy_process_group(group: 'Any' = None) -> 'None': ...
def init_process_group(rank: 'int', world_size: 'int', store: 'Any' = None, **kwargs: 'Any') -> 'None': ...
def is_initialized() -> 'bool': ...
def new_group(ranks: 'Sequence[int] | None' = None, **kwargs: 'Any') -> 'Any': ...
def use_backend(backend: 'str | None') -> 'None': ...

"""A worker as an engine has it that runs the Python package checkpoint-engine: its `update_weights_from_ipc`,
unmodified, and a `load_weights` that copies every tensor into the model's own parameters. Serves its rank, gpu_update
or compare_reference.py, over the socket --peer-fd in lines of text:
  ping NONCE            -> pong NONCE
  poison                -> ok              overwrites all parameters
  compare               -> ok              every byte is what was registered, else "error ..."
  tensors COUNT BYTES   -> ok              other parameters: so many equal tensors
  update ADDRESS MODE   -> ok SECONDS LOADING PROCESSOR RELEASE, all in seconds
RELEASE is what the package's own release takes without an update (garbage collection, emptying of caches), measured at
`poison`."""
import argparse
import gc
import socket
import sys
import time

import torch
import zmq

import weights


def serve_host_memory():
    """The package knows GPUs only; dry runs use what it would do without one."""
    import types

    import checkpoint_engine.worker as package

    nothing = types.SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)
    package.DeviceManager = lambda: types.SimpleNamespace(device_module=nothing)
    return nothing


class Worker:
    def __init__(self, options):
        self.on_gpu = options.device != "host"
        self.index = (0 if options.isolate else options.rank % options.gpus) if self.on_gpu else None
        self.device = f"cuda:{self.index}" if self.on_gpu else "cpu"
        if self.on_gpu:
            torch.cuda.set_device(self.index)
        self.module = torch.cuda if self.on_gpu else serve_host_memory()
        self.make_parameters(weights.layout(options.gib, options.shrink, options.experts, options.tensors,
                                            options.tensor_bytes)[0])
        self.context = zmq.Context()
        self.release_seconds = 0.0
        self.module.empty_cache()
        self.module.synchronize()

    def make_parameters(self, tensors):
        self.tensors = tensors
        self.expected = weights.words(tensors, self.device)
        self.parameters = {name: torch.empty(shape, dtype=torch.bfloat16, device=self.device)
                           for name, shape in tensors}
        self.module.synchronize()
        return "ok"

    def release(self):
        begin = time.perf_counter()
        for _ in range(2):  # on release, and at the end
            gc.collect()
            self.module.ipc_collect()
            self.module.empty_cache()
        self.module.synchronize()
        self.release_seconds = time.perf_counter() - begin

    def poison(self):
        for parameter in self.parameters.values():
            parameter.view(torch.uint8).fill_(0xA5)
        self.module.synchronize()
        self.release()
        return "ok"

    def compare(self):
        for i, (name, shape) in enumerate(self.tensors):
            right = weights.expected(self.expected, i, shape)
            if not torch.equal(self.parameters[name].view(torch.int16), right.view(torch.int16)):
                return f"error {name} differs from what was registered"
        self.module.empty_cache()
        return "ok"

    def update(self, address):
        from checkpoint_engine.worker import update_weights_from_ipc

        loading = 0.0

        def load(named):
            nonlocal loading
            begin = time.perf_counter()
            for name, tensor in named:
                self.parameters[name].copy_(tensor)
            self.module.synchronize()
            loading += time.perf_counter() - begin

        begin, processor = time.perf_counter(), time.process_time()
        update_weights_from_ipc(self.context, address, self.index, run=load, post_hook=self.module.synchronize)
        return f"ok {time.perf_counter() - begin} {loading} {time.process_time() - processor} {self.release_seconds}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--tensors", type=int, default=0)
    parser.add_argument("--tensor-bytes", type=weights.size, default=0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--isolate", type=int, default=0)
    parser.add_argument("--peer-fd", type=int, required=True)
    options, _ = parser.parse_known_args()
    peer = socket.socket(fileno=options.peer_fd)
    lines = peer.makefile("rw", buffering=1)
    try:
        worker = Worker(options)
        import checkpoint_engine.worker  # noqa: F401  before anything is measured
    except Exception as error:
        lines.write(f"error {error}\n".replace("\n", " ") + "\n")
        raise
    for line in lines:
        command, *arguments = line.split()
        try:
            if command == "ping":
                answer = f"pong {arguments[0]}"
            elif command == "update":
                answer = worker.update(arguments[0])
            elif command == "tensors":
                answer = worker.make_parameters(weights.layout(0, 1, False, *map(int, arguments))[0])
            else:
                answer = getattr(worker, command)()
        except Exception as error:  # an update that failed leaves a worker that serves the next
            answer = "error " + str(error).replace("\n", " ")
            print(f"stock_worker: {answer}", file=sys.stderr)
        lines.write(answer + "\n")


if __name__ == "__main__":
    main()

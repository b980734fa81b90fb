"""One rank of the field's package checkpoint-engine 0.4.x: measures what gpu_update measures of ours, with the same
workers and the same weights. Started by compare_reference.py, one process for each rank; its result is one line of
JSON on --result-fd."""
import argparse
import json
import os
import socket
import statistics
import threading
import time

import torch
import torch.distributed

import weights


class Worker:
    def __init__(self, fd):
        self.lines = socket.socket(fileno=fd).makefile("rw", buffering=1)

    def ask(self, line):
        self.lines.write(line + "\n")
        answer = self.lines.readline().split()
        if not answer or answer[0] not in ("ok", "pong"):
            raise RuntimeError(f"worker: {line}: {' '.join(answer) or 'has ended'}")
        return answer[1:]


class MemoryWatch(threading.Thread):
    """The least free memory of the GPU until stop()."""

    def __init__(self):
        super().__init__()
        self.least, self.over = torch.cuda.mem_get_info()[0], False
        self.start()

    def run(self):
        while not self.over:
            self.least = min(self.least, torch.cuda.mem_get_info()[0])
            time.sleep(0.001)

    def stop(self):
        self.over = True
        self.join()
        return self.least


class Rank:
    def __init__(self, options):
        self.options, self.rank, self.count = options, options.rank, options.ranks
        self.worker = Worker(options.peer_fd)
        self.worker.ask("ping first")
        torch.cuda.set_device(self.rank % options.gpus)
        self.store = torch.distributed.TCPStore("127.0.0.1", options.barrier_port, self.count, is_master=self.rank == 0)
        self.barriers = 0

    def make_weights(self, tensors, total):
        self.total = total
        self.buffer = weights.words(tensors)
        self.named, loads = {}, [0] * self.count
        for i, (name, shape) in enumerate(tensors):
            owner = loads.index(min(loads))
            loads[owner] += weights.bytes_of(shape)
            if owner == self.rank:
                self.named[name] = weights.expected(self.buffer, i, shape)

    def barrier(self):
        self.barriers += 1
        key = f"barrier-{self.barriers}"
        if self.store.add(key, 1) == self.count:
            self.store.set(key + "-passed", "")
        self.store.wait([key + "-passed"])

    def timed(self, body):
        self.barrier()
        begin = time.perf_counter()
        body()
        return time.perf_counter() - begin

    def update(self):
        answers = []
        self.barrier()
        processor, begin = time.process_time(), time.perf_counter()
        self.server.update(
            "bench", lambda addresses: answers.append(self.worker.ask(f"update {addresses[self.rank][1]} trust")))
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        while not answers:  # the package does not wait for it
            time.sleep(0.001)
        return {"seconds": seconds, "cpu_seconds": processor, "worker_cpu_seconds": float(answers[0][2])}

    def run(self):
        """The figures of each checkpoint, one after the other."""
        from checkpoint_engine.ps import ParameterServer

        self.server = ParameterServer(auto_pg=True)
        options = self.options
        if not options.equal_tensors:
            self.make_weights(*weights.layout(options.gib, options.shrink, options.experts))
            return [self.measure()]
        results = []
        for count, size in (map(int, spec.split("x")) for spec in options.equal_tensors):
            self.worker.ask(f"tensors {count} {size}")
            self.make_weights(*weights.layout(0, 1, False, count, size))
            results.append(self.measure())
            self.server.unregister_checkpoint("bench")
        return results

    def measure(self):
        register = lambda: self.server.register_checkpoint("bench", named_tensors=self.named)  # noqa: E731
        result = {"register_first_seconds": self.timed(register)}
        result["unregister_seconds"] = self.timed(lambda: self.server.unregister_checkpoint("bench"))
        result["register_seconds"] = self.timed(register)
        result["gather_seconds"] = self.timed(lambda: self.server.gather_metas("bench"))
        self.worker.ask("poison")
        self.barrier()
        before = torch.cuda.mem_get_info()[0]
        first = self.update()
        self.worker.ask("compare")
        later = []
        for i in range(self.options.updates):
            if i + 1 == self.options.updates:
                self.worker.ask("poison")
            later.append(self.update())
        self.worker.ask("compare")
        watch = MemoryWatch()
        self.update()
        middle = lambda member: statistics.median_high(one[member] for one in later)  # noqa: E731
        result |= {"first_seconds": first["seconds"], "later_seconds": middle("seconds"),
                   "rank_cpu_seconds": middle("cpu_seconds"),
                   "worker_cpu_seconds": middle("worker_cpu_seconds"), "extra_device_bytes": before - watch.stop(),
                   "total_bytes": self.total, "all_seconds": [one["seconds"] for one in later]}
        self.barrier()
        return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--equal-tensors", nargs="*", help="COUNTxBYTES: these checkpoints instead, one after the other")
    parser.add_argument("--experts", type=int, default=0)
    for name in ("shrink", "ranks", "gpus", "rank", "updates", "peer-fd", "result-fd", "barrier-port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    os.environ.update(RANK=str(options.rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(options.rank))
    result = Rank(options).run()
    with socket.socket(fileno=options.result_fd) as parent:
        parent.sendall(json.dumps(result).encode() + b"\n")
    os._exit(0)  # the package may keep threads


if __name__ == "__main__":
    main()

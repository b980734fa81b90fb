"""A rank by the Python API, which updates engines and says how long that took. Whose `checkpoint_engine` it is, ours
or the field's 0.4.2, PYTHONPATH decides; the code is the same for both.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=P gpu_ranks.py --checkpoint FOLDER --updates N [--wrong TENSOR] NAME=ROUTE=URL ...

ROUTE: extension, or native (vLLM's own weight transfer). Every engine is updated N times in turn; a line of JSON for
each, and one for registration. With --wrong each is then given an update in which this tensor has a wrong shape, and a
good one.
"""

import argparse
import json
import os
import pathlib
import threading
import time

import torch  # noqa: F401  the field's package needs it; for ours it makes no difference
from checkpoint_engine.api import request_inference_to_update
from checkpoint_engine.ps import ParameterServer

from engine import call


def say(**members):
    print(json.dumps(members), flush=True)


class Call:
    """The req_func of one update; remembers when the engine answered."""

    def __init__(self, route, url, rank):
        self.route, self.url, self.rank = route, url, rank
        self.answered = threading.Event()
        self.seconds = None

    def __call__(self, entries):
        begin = time.perf_counter()
        try:
            if self.rank == 0:
                getattr(self, self.route)(dict(entries))
        finally:
            self.seconds = time.perf_counter() - begin
            self.answered.set()

    def extension(self, addresses):
        request_inference_to_update(f"{self.url}/collective_rpc", addresses)

    def native(self, addresses):
        for path, body in (
            ("init_weight_transfer_engine", {"init_info": {}}),
            ("start_weight_update", {}),
            ("update_weights", {"update_info": {"addresses": addresses}}),
            ("finish_weight_update", {}),
        ):
            call("POST", f"{self.url}/{path}", body)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--wrong")
    parser.add_argument("engines", nargs="+")
    options = parser.parse_args()
    server = ParameterServer(auto_pg=True)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    files = sorted(map(str, options.checkpoint.glob("*.safetensors")))[rank::count]
    begin = time.perf_counter()
    server.register_checkpoint("good", files=files)
    say(register_seconds=time.perf_counter() - begin)
    server.gather_metas("good")
    for engine in options.engines:
        name, route, url = engine.split("=", 2)
        updates, answers = [], []
        for _ in range(options.updates):
            call = Call(route, url, rank)
            begin = time.perf_counter()
            server.update("good", call)
            call.answered.wait(60)  # 0.4.2 does not wait for it
            updates.append(time.perf_counter() - begin)
            answers.append(call.seconds)
        say(engine=name, rank=rank, updates=updates, answers=answers)
        if options.wrong:
            error = wrong_update(server, options, Call(route, url, rank))
            say(engine=name, rank=rank, refused=error)
            server.update("good", Call(route, url, rank))


def wrong_update(server, options, call):
    """What the update says in which one tensor is too small."""
    with open(options.checkpoint / "model.safetensors.index.json") as index:
        file = options.checkpoint / json.load(index)["weight_map"][options.wrong]
    server.register_checkpoint(
        "wrong", files=[str(file)], named_tensors={options.wrong: torch.zeros(8, 8, dtype=torch.bfloat16)}
    )
    try:
        server.gather_metas("wrong")
        server.update("wrong", call)
    except Exception as error:
        return str(error)
    finally:
        server.unregister_checkpoint("wrong")
        server.gather_metas("good")
    return None


if __name__ == "__main__":
    main()

"""Calls that block for as long as another process likes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

_MOST_CALLS = 4  # to one peer that have not returned
_IDLE_SECONDS = 10.0  # after which a thread without work ends


class _Caller:
    """A daemon thread that makes calls one after the other, and ends when there was none for a while."""

    def __init__(self, retire: Callable[[_Caller], bool]) -> None:
        """`retire`: whether it may end; from then on nobody calls it."""
        self._retire = retire
        self._inbox: SimpleQueue[tuple[Callable[[], int], Future[int], Callable[[], None]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="mooncake", daemon=True).start()

    def call(self, call: Callable[[], int], done: Callable[[], None]) -> Future[int]:
        """`done` runs before the outcome is there."""
        outcome: Future[int] = Future()
        self._inbox.put((call, outcome, done))
        return outcome

    def end(self) -> None:
        self._inbox.put(None)

    def _run(self) -> None:
        while True:
            try:
                asked = self._inbox.get(timeout=_IDLE_SECONDS)
            except Empty:
                if self._retire(self):
                    return
                continue
            if asked is None:
                return
            call, outcome, done = asked
            try:
                code = call()
            except Exception as error:
                done()
                outcome.set_exception(error)
            else:
                done()
                outcome.set_result(code)


class Callers:
    """In which calls of Mooncake block, which nothing can end: a few for each peer, so that one that has stopped holds up neither
    the others nor the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Caller] = []  # guarded by _lock, like what follows
        self._busy: Counter[str] = Counter()
        self._closed = False

    def call(self, peer: str, call: Callable[[], int]) -> Future[int]:
        """Raises TimeoutError when too many calls to this peer have not returned."""
        with self._lock:
            if self._busy[peer] >= _MOST_CALLS:
                raise TimeoutError(f"{peer} does not answer: {_MOST_CALLS} reads of its memory that were given up go on")
            caller = self._idle.pop() if self._idle else _Caller(self._retire)
            self._busy[peer] += 1
        return caller.call(call, lambda: self._give_back(peer, caller))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for caller in idle:
            caller.end()

    def _give_back(self, peer: str, caller: _Caller) -> None:
        with self._lock:
            count_down(self._busy, peer)
            if not self._closed:
                self._idle.append(caller)
                return
        caller.end()

    def _retire(self, caller: _Caller) -> bool:
        with self._lock:
            if caller not in self._idle:
                return False  # it is just being called, or told to end
            self._idle.remove(caller)
            return True


def count_down(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] == 0:
        del counter[key]

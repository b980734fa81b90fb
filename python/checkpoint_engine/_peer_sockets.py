"""Messages to other processes over ZeroMQ."""

from __future__ import annotations

import time
from collections import OrderedDict

import zmq

_IDLE_SECONDS = 10.0  # after which a socket without use is closed: nothing that was said before means anything any more
_MOST_SOCKETS = 900  # below ZeroMQ's own limit
_LINGER_MILLISECONDS = 200  # for the last messages, which give permits back


class Senders:
    """Sockets to those who were told something lately: one that is gone would be connected to for ever. From one thread at a time."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: OrderedDict[str, tuple[zmq.Socket[bytes], float]] = OrderedDict()  # when last used, in that order

    def __len__(self) -> int:
        return len(self._sockets)

    def inbox(self, host: str, patience: int) -> tuple[zmq.Socket[bytes], int]:
        """A socket for the messages of others, of another thread, that waits for `patience` milliseconds; and its port."""
        inbox = self._context.socket(zmq.PULL)
        inbox.setsockopt(zmq.IPV6, 1)
        inbox.setsockopt(zmq.RCVTIMEO, patience)
        return inbox, inbox.bind_to_random_port(f"tcp://{bracketed(host)}")

    def send(self, address: str, message: bytes) -> None:
        host, _, port = address.split()
        sender, _ = self._sockets.pop(address, (None, 0.0))
        try:
            if sender is None:
                sender = self._connect(f"tcp://{bracketed(host)}:{port}")
            self._sockets[address] = sender, time.monotonic()
            sender.send(message)
        except zmq.ZMQError as error:
            raise ConnectionError(f"{host} takes no messages ({error})") from None

    def close_idle(self) -> None:
        before = time.monotonic() - _IDLE_SECONDS
        while self._sockets and next(iter(self._sockets.values()))[1] < before:
            self._close_oldest()

    def close(self) -> None:
        for sender, _ in self._sockets.values():
            sender.close(linger=_LINGER_MILLISECONDS)
        self._sockets.clear()

    def end(self) -> None:
        """After close(), and when the inbox is closed."""
        self._context.term()

    def _connect(self, where: str) -> zmq.Socket[bytes]:
        while len(self._sockets) >= _MOST_SOCKETS:
            self._close_oldest()
        sender = self._context.socket(zmq.PUSH)
        try:
            sender.setsockopt(zmq.LINGER, 0)
            sender.setsockopt(zmq.IPV6, 1)
            sender.setsockopt(zmq.SNDTIMEO, 0)
            sender.connect(where)
        except BaseException:
            sender.close()
            raise
        return sender

    def _close_oldest(self) -> None:
        _, (sender, _) = self._sockets.popitem(last=False)
        sender.close(linger=0)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

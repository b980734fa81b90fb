"""What the engine raises. The text of an error names rank, tensor, file or peer, and what to do."""

from __future__ import annotations

__all__ = [
    "CheckpointEngineError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "PeerLostError",
    "error_of",
]


class CheckpointEngineError(RuntimeError):
    """An update, or another call of the engine, has failed.

    Attributes:
        code: what broke, e.g. "data loss"; the names of ckpt::StatusCode.
        rank: the rank on which the cause was found; None when it is not known.
    """

    code: str
    rank: int | None

    def __init__(self, message: str, code: str = "internal", rank: int | None = None):
        super().__init__(message)
        self.code = code
        self.rank = rank

    def __reduce__(self):
        return type(self), (str(self), self.code, self.rank)


class InvalidArgumentError(CheckpointEngineError, ValueError):
    """This call's arguments are wrong; nothing was changed."""


class DeadlineExceededError(CheckpointEngineError, TimeoutError):
    """Somebody has not answered in time."""


class PeerLostError(CheckpointEngineError, ConnectionError):
    """A rank or a worker has gone."""


_CLASSES = {
    "invalid argument": InvalidArgumentError,
    "deadline exceeded": DeadlineExceededError,
    "peer lost": PeerLostError,
}


def error_of(code: str, message: str, rank: int | None) -> CheckpointEngineError:
    """The exception for a Status of the C++ API."""
    return _CLASSES.get(code, CheckpointEngineError)(message, code, rank)

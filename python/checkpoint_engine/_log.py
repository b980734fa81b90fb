"""The engine's log lines go to the logger "checkpoint_engine"."""

from __future__ import annotations

import atexit
import logging

from . import _core

logger = logging.getLogger("checkpoint_engine")


def _stop() -> None:
    _core.set_log(None)  # its threads may outlive the interpreter


_core.set_log(lambda level, text: logger.log(level, "%s", text))
atexit.register(_stop)

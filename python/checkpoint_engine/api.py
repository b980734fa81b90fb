"""Calls to inference engines over HTTP."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import _core

__all__ = ["request_inference_to_update"]


def request_inference_to_update(
    url: str,
    socket_paths: Mapping[str, str],
    timeout: float = 300.0,
    uds: str | None = None,
) -> None:
    """Tells an engine to take its weights from `socket_paths`, and returns when all of its workers have.

    For use in the req_func of ParameterServer.update. Proxy variables are not looked at.

    Args:
        url: "http://HOST:PORT/collective_rpc" (vLLM), ".../update_weights" (vLLM's weight transfer) or
            ".../update_weights_from_ipc" (SGLang). With `uds` its path alone will do.
        socket_paths: address by device, of the ranks of this engine; empty ones are left out.
        timeout: seconds.
        uds: Unix socket of the engine.

    Raises:
        CheckpointEngineError: one line that says what the engine answered, and what to do.

    The API key of the engine, where it wants one, is taken from the environment variable CHECKPOINT_ENGINE_API_KEY.
    """
    if uds and url.startswith("/"):
        url = f"http://localhost{url}"
    addresses = {device: address for device, address in socket_paths.items() if address}
    token = os.environ.get("CHECKPOINT_ENGINE_API_KEY", "")
    _core.update_engine(url, addresses, float(timeout), uds or "", token)

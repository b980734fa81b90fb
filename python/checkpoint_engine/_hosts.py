"""Names and addresses of hosts, as variables and callers write them: an IPv6 address with or without brackets."""

from __future__ import annotations

import os


def master_host(given: str | None) -> str:
    """What was given, else MASTER_ADDR, else this machine; without brackets."""
    host = (given or os.environ.get("MASTER_ADDR") or "127.0.0.1").strip()
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def host_port(host: str, port: int) -> str:
    """ "host:port", "[address]:port". """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_address(master: str) -> str:
    """Where the rank at `master` listens: on its loopback interface where it is there, else (empty) everywhere."""
    if master == "::1":
        return master
    return "127.0.0.1" if master.startswith("127.") or master == "localhost" else ""

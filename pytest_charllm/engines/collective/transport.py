"""What carries the messages, as far as the library says so: part of what is on record beside the times."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import MutableMapping
from pathlib import Path

NOT_KNOWN = "not known"
_VIA = re.compile(r"\bvia ([\w./-]+)")


def ask_nccl(environ: MutableMapping[str, str], file: Path) -> Path | None:
    """Have NCCL write to `file` how it connects; None where the site has its own place or level for that.

    Before the process group exists. It tells at the set-up of its channels, never of single calls.
    """
    if environ.get("NCCL_DEBUG", "INFO") != "INFO" or "NCCL_DEBUG_FILE" in environ or "NCCL_DEBUG_SUBSYS" in environ:
        return None
    environ["NCCL_DEBUG"], environ["NCCL_DEBUG_FILE"] = "INFO", str(file)
    return file


def nccl_transport(version: str | None, log: str) -> str:
    """``NCCL 2.27.5: P2P/CUMEM``, from its log's lines of channels ("via ..."); every transport that is used, once."""
    used = sorted(set(_VIA.findall(log)))
    return f"NCCL {version or NOT_KNOWN}: {' and '.join(used) or NOT_KNOWN}"


def gloo_transport() -> str:
    """``gloo: eth0``. It takes the interface that GLOO_SOCKET_IFNAME names, else the one of the host's own name."""
    if named := os.environ.get("GLOO_SOCKET_IFNAME"):
        return f"gloo: {named}"
    import psutil

    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"gloo: {NOT_KNOWN}"
    found = (name for name, known in psutil.net_if_addrs().items() if any(each.address == own for each in known))
    return f"gloo: {next(found, NOT_KNOWN)}"

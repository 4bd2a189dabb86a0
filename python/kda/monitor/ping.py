"""Is the service there, and what machine is this: ``kda monitor ping``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from importlib import metadata

import kda
from kda.monitor.errors import UsageError

DEFAULT_HOST = "https://api.swanlab.cn"
TIMEOUT_S = 5.0
_EXPECTED = b"OK"


@dataclass(frozen=True)
class Link:
    host: str
    is_ok: bool
    status: str
    latency_ms: float


def swanlab_host(given: str | None = None) -> str:
    """Scheme, name and port of the API, from the flag, SWANLAB_API_HOST, or the public service."""
    host = given or os.environ.get("SWANLAB_API_HOST") or DEFAULT_HOST
    try:
        parts = urllib.parse.urlsplit(host if "://" in host else f"https://{host}")
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise UsageError(f"host: {host!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"host: expected http(s)://name[:port], got {host!r}")
    # User and password of a URL are left behind: they would be printed.
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{name}{port}"


def check_link(host: str, timeout_s: float = TIMEOUT_S) -> Link:
    """GET {host}/api once; the body must be exactly OK. No key is sent."""
    result: list[tuple[bool, str]] = []
    start = time.perf_counter()
    # A thread, because the library's timeout is per read: a server that drips would hold us.
    thread = threading.Thread(target=lambda: result.append(_ask(host, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    taken = (time.perf_counter() - start) * 1e3
    is_ok, status = result[0] if result else (False, f"no answer within {timeout_s:.0f} s")
    return Link(host, is_ok, status, taken)


def _ask(host: str, timeout_s: float) -> tuple[bool, str]:
    agent = {"User-Agent": f"kda/{kda.__version__}"}
    try:
        request = urllib.request.Request(f"{host}/api", headers=agent)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            body = answer.read(64)
    except urllib.error.HTTPError as error:
        return False, f"HTTP {error.code}"
    except TimeoutError:
        return False, f"no answer within {timeout_s:.0f} s"
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return False, f"no answer within {timeout_s:.0f} s"
        return False, f"no connection ({error.reason})"
    except (OSError, ValueError) as error:
        return False, f"no connection ({error})"
    except Exception as error:  # http.client has errors of its own for answers that are no HTTP
        return False, f"not an HTTP answer ({type(error).__name__})"
    if body != _EXPECTED:
        return False, f"unexpected answer {body[:40]!r}, expected b'OK'"
    return True, "OK"


def gpus() -> list[str]:
    """One text per NVIDIA GPU; [] when there is none or no driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"not installed ({sys.executable} -m pip install {package})"


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"


def ping(host: str | None) -> int:
    """Prints link, versions, system and GPUs. Exit code 0 when the link is good, else 1."""
    link = check_link(swanlab_host(host))
    cards = gpus()
    rows = [
        ("link", f"{link.status} | {link.host}/api | {link.latency_ms:.0f} ms"),
        ("key", "SWANLAB_API_KEY is set" if has_key() else "SWANLAB_API_KEY is not set"),
        ("swanlab", version("swanlab")),
        ("kda", f"{kda.__version__}, Python {platform.python_version()}"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("CPU", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {_memory()}"),
        *([(f"GPU {i}", card) for i, card in enumerate(cards)] or [("GPU", "none found")]),
    ]
    for name, text in rows:
        print(f"{name:<8} {text}")
    return 0 if link.is_ok else 1


def has_key() -> bool:
    return bool(os.environ.get("SWANLAB_API_KEY", "").strip())

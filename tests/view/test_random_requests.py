"""Random and damaged requests over the network: the viewer must answer the next good one.

KDA_VIEW_FUZZ_SECONDS makes it longer; with a view_serve built by a sanitizer it says more.
"""

from __future__ import annotations

import os
import random
import socket
import time
import urllib.parse
from typing import Any

SEEDS = [
    "/",
    "/page/main.js",
    "/page/plotly.js",
    "/api/config",
    "/api/list_tensors",
    "/api/get_tensor?tensor_key=model.safetensors:conv.weight&code=tensor.T[1:,::-1].reshape(-1)",
    "/api/get_tensor?tensor_key=model.safetensors:odd&normalization=zscore&range=-1,2",
    "/view/files",
    "/view/tensor?key=model.safetensors:conv.weight&axes=2,0&at=0,1,0&window=0:4,1:2&cells=9",
    "/view/tensor?key=model.safetensors:model.embed_tokens.weight",
    "/view/graph?file=example.trace.json&phase=0",
    "/view/node?file=example.trace.json&label=linear_1_3:1",
    "/view/metrics?file=run/metrics.jsonl",
    "/tensorlens/model.safetensors",
    "/tensorlens/../../../etc/passwd",
]
PIECES = [
    "%00",
    "%2e%2e/",
    "..",
    "/",
    "\\",
    "&",
    "=",
    "?",
    "#",
    "%",
    "%zz",
    "\u4e2d",
    "[",
    "]",
    "(",
    ")",
]
PIECES += [
    ":",
    ",",
    "-1",
    "99999999999999999999",
    "nan",
    "tensor",
    "abs(",
    ".T",
    "\r\n",
    "\n",
    "\0",
    " ",
]
HEADERS = [
    "Host: localhost",
    "Host: evil.example",
    "Host: ",
    "Origin: http://evil.example",
    "Range: bytes=" + "0-0," * 200,
    "Content-Length: 99999999999",
    "Content-Length: -1",
    "Transfer-Encoding: chunked",
    "Expect: 100-continue",
    "Connection: keep-alive, upgrade",
    "Upgrade: websocket",
    "Sec-Fetch-Site: cross-site",
    "X" * 300 + ": y",
    ": no name",
    "no colon",
    " folded",
]


def damaged(rng: random.Random) -> bytes:
    """A request that was good before some of its parts were changed."""
    target = rng.choice(SEEDS)
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(target) + 1)
        end = min(len(target), at + rng.randrange(4))
        target = target[:at] + rng.choice(PIECES) + target[end:]
    if rng.random() < 0.3:
        target = urllib.parse.quote(target, safe="/?&=")
    method = rng.choice(["GET"] * 8 + ["HEAD", "POST", "PUT", "get", "G" * 5000, ""])
    version = rng.choice(["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/2", "", "HTTP/1.1 x"])
    lines = [f"{method} {target} {version}", *rng.sample(HEADERS, rng.randrange(4))]
    if rng.random() < 0.8:
        lines.insert(1, "Host: 127.0.0.1")
    raw = ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
    for _ in range(rng.choice([0, 0, 0, 1, 5])):
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    if rng.random() < 0.1:
        raw = raw[: rng.randrange(len(raw))]
    return raw * rng.choice([1, 1, 1, 2, 3])


def send(port: int, raw: bytes, patience: float = 0.2) -> bytes:
    """The reply as far as it comes soon; like many clients, it then just leaves."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(raw)
        connection.settimeout(patience)
        reply = b""
        try:
            while len(reply) < 1 << 16:
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                reply += piece
        except OSError:
            pass
        return reply


def test_no_request_hurts(server: Any) -> None:
    seed = int(os.environ.get("KDA_VIEW_FUZZ_SEED", "1"))
    rng = random.Random(seed)
    end = time.monotonic() + float(os.environ.get("KDA_VIEW_FUZZ_SECONDS", "5"))
    count = 0
    while time.monotonic() < end:
        raw = damaged(rng)
        try:
            reply = send(server.port, raw, 0.02)
        except OSError:
            reply = b""  # refused in the middle of sending
        assert server.running(), f"the viewer died of request {count}: {raw!r}"
        assert not reply or reply.startswith(b"HTTP/1.1 "), (raw, reply[:200])
        assert b"HTTP/1.1 500" not in reply, (raw, reply)
        assert b"root:" not in reply
        count += 1
        if count % 200 == 0:
            good = b"GET /api/config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            deadline = time.monotonic() + 30
            while not send(server.port, good, 5).startswith(b"HTTP/1.1 200"):
                assert time.monotonic() < deadline, "the viewer no longer answers"
                time.sleep(0.1)
    print(f"{count} requests from seed {seed}")
    assert count > 20

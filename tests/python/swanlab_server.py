"""A stand-in for SwanLab's service on the loopback address, as far as its library asks for it.

It keeps what it is given, says what it has when a run is resumed, and can go away in between.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROJECT = {
    "cuid": "projectid",
    "name": "kda",
    "path": "/someone/kda",
    "group": {"username": "someone"},
    "_count": {"experiments": 0},
}


class Service:
    def __init__(self) -> None:
        self.points: list[tuple[str, str, int, float]] = []  #: run, name, step, value
        self.runs: dict[str, str] = {}  #: id -> state
        self.requests: list[str] = []
        self.is_down = False
        self.url = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        path = path.partition("?")[0].removeprefix("/api")
        if path == "":
            return 200, "OK"
        if path == "/login/api_key":
            user = {"username": "someone"}
            return 200, {"sid": "s", "expiredAt": "2999-01-01T00:00:00.000Z", "userInfo": user}
        if path == "/project/someone/kda":
            return 200, PROJECT
        if path.endswith("/experiment"):
            is_new = body["cuid"] not in self.runs
            self.runs[body["cuid"]] = "RUNNING"
            made = {"cuid": body["cuid"], "slug": body["cuid"], "name": body["name"]}
            return (201 if is_new else 200), {**made, "createdAt": "2026-01-01T00:00:00.000Z"}
        if path.startswith("/house/metrics/summaries/"):
            return 200, self._summary(path.rpartition("/")[2])
        if path == "/house/metrics":
            self._keep(body)
        if path.endswith("/state"):
            self.runs[path.split("/")[-2]] = body["state"]
        return 200, {}

    def _summary(self, run: str) -> dict[str, Any]:
        last: dict[str, int] = {}
        for owner, name, step, _ in self.points:
            if owner == run:
                last[name] = max(step, last.get(name, -1))
        return {"scalar": [{"key": key, "step": step} for key, step in last.items()]}

    def _keep(self, body: dict[str, Any]) -> None:
        if body.get("type") != "scalar":
            return
        for row in body["metrics"]:
            value = row["data"]
            value = value.get("data") if isinstance(value, dict) else value
            self.points.append((body["experimentId"], row["key"], int(row["index"]), float(value)))

    def of(self, run: str) -> list[tuple[str, int, float]]:
        return [(name, step, value) for owner, name, step, value in self.points if owner == run]


@contextmanager
def swanlab_service() -> Iterator[Service]:
    service = Service()
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(size)
            if service.is_down:
                self.close_connection = True
                return
            with lock:
                service.requests.append(f"{self.command} {self.path} {raw[:300]!r}")
                body = json.loads(raw) if raw else None
                status, answer = service.answer(self.command, self.path, body)
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = _do

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()

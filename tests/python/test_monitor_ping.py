"""`kda monitor ping` against servers of this machine, good, wrong, slow and absent."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kda.monitor import cli, ping
from kda.monitor.errors import UsageError


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def serving(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, dict(self.headers)))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    requests.clear()
    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


requests: list[tuple[str, dict[str, str]]] = []


def body(text: bytes, status: int = 200) -> Callable:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    return answer


def test_good_link_without_the_key(capsys, monkeypatch) -> None:
    monkeypatch.setenv("SWANLAB_API_KEY", "do-not-show-3141")
    with serving(body(b"OK")) as host:
        monkeypatch.setenv("SWANLAB_API_HOST", host)
        assert cli.main(["ping"]) == 0
        said = capsys.readouterr().out
    assert f"OK | {host}/api |" in said
    for row in ("swanlab", "kda", "system", "CPU", "GPU"):
        assert f"\n{row}" in said
    assert "SWANLAB_API_KEY is set" in said
    assert "3141" not in said
    assert [path for path, _ in requests] == ["/api"]
    assert "3141" not in str(requests)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (body(b"OK\n"), "unexpected answer b'OK\\n', expected b'OK'"),
        (body(b"ok"), "unexpected answer"),
        (body(b""), "unexpected answer b''"),
        (body(b"<html>login</html>" * 999), "unexpected answer b'<html>"),
        (body(b"OK", 503), "HTTP 503"),
        (lambda handler: handler.wfile.write(b"garbage\r\n\r\n"), "not an HTTP answer"),
    ],
)
def test_wrong_answers_fail_once(capsys, answer: Callable, status: str) -> None:
    with serving(answer) as host:
        assert cli.main(["ping", "--host", host]) == 1
    assert status in capsys.readouterr().out
    assert len(requests) == 1  # no retry


def test_no_server(capsys) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert cli.main(["ping", "--host", f"http://127.0.0.1:{port}"]) == 1
    assert "no connection" in capsys.readouterr().out


@pytest.mark.parametrize("drips", [False, True])
def test_a_silent_or_dripping_server_ends_in_time(drips: bool) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(20):
            time.sleep(0.2)
            if drips:
                handler.wfile.write(b" ")
                handler.wfile.flush()

    with serving(answer) as host:
        start = time.monotonic()
        link = ping.check_link(host, timeout_s=0.6)
        assert time.monotonic() - start < 3
    assert not link.is_ok
    assert "no answer within" in link.status


def test_the_limit_is_five_seconds() -> None:
    assert ping.TIMEOUT_S == 5.0


def test_hosts(monkeypatch) -> None:
    monkeypatch.delenv("SWANLAB_API_HOST", raising=False)
    assert ping.swanlab_host() == "https://api.swanlab.cn"
    assert ping.swanlab_host("my.host:8000/api/") == "https://my.host:8000"
    assert ping.swanlab_host("http://user:secret@[::1]:80/x") == "http://[::1]:80"
    for bad in ("file:///etc/passwd", "https://", "http://a:b", "ftp://x"):
        with pytest.raises(UsageError):
            ping.swanlab_host(bad)

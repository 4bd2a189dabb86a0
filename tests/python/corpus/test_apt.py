"""The private apt, with small scripts in place of the system's tools."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from kda.corpus import debian
from kda.corpus.apt import LISTS_MAX_AGE_S, Apt, DebInfo
from kda.corpus.errors import CorpusError

_DATA = b"package data"
_SHA = hashlib.sha256(_DATA).hexdigest()
_SHOW = f"""Package: git
Version: 1:2.39
Architecture: amd64
Size: {len(_DATA)}
SHA256: {_SHA}
Description: text

Package: local-only
Version: 3
Architecture: all
"""
GIT = DebInfo("git", "1:2.39", "amd64", len(_DATA), _SHA)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH; tests put scripts there. Every call is written to ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    for name in ("apt-get", "apt-cache", "dpkg-deb"):
        script(folder, name, "exit 0")
    return folder


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> "$CALLS"\n{body}\n')
    path.chmod(0o755)


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_every_writable_path_is_in_the_cache(tools: Path, tmp_path: Path) -> None:
    Apt(tmp_path / "cache", quiet=True).update(refresh=False)
    (line,) = calls(tmp_path)
    assert f"Dir::State::Lists={tmp_path}/cache/apt/lists" in line
    assert f"Dir::Cache={tmp_path}/cache/apt/cache" in line
    assert "install" not in line


def test_lists_are_reused_until_old(tools: Path, tmp_path: Path) -> None:
    apt = Apt(tmp_path / "cache", quiet=True)
    for _ in range(3):
        apt.update(refresh=False)
    assert len(calls(tmp_path)) == 1
    apt.update(refresh=True)
    assert len(calls(tmp_path)) == 2
    past = time.time() - LISTS_MAX_AGE_S - 10
    os.utime(tmp_path / "cache" / "apt" / "updated", (past, past))
    apt.update(refresh=False)
    assert len(calls(tmp_path)) == 3


def test_no_network_fails_first_and_is_survived_later(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apt = Apt(tmp_path / "cache", quiet=True)
    failing = 'echo "E: Failed to fetch http://x/InRelease  Could not resolve" >&2; exit 100'
    script(tools, "apt-get", failing)
    with pytest.raises(CorpusError, match="package lists: E: Failed to fetch"):
        apt.update(refresh=False)
    script(tools, "apt-get", "exit 0")
    apt.update(refresh=False)
    script(tools, "apt-get", failing)
    apt.update(refresh=True)
    assert "warning: package lists: E: Failed to fetch" in capsys.readouterr().err


def test_lookup_skips_unknown_and_undownloadable(tools: Path, tmp_path: Path) -> None:
    script(tools, "apt-cache", f"cat <<'X'\n{_SHOW}\nX\nexit 100")
    apt = Apt(tmp_path / "cache", quiet=True)
    assert apt.lookup(["git", "local-only", "absent"]) == {"git": GIT}


def test_download_is_cached_and_checked(tools: Path, tmp_path: Path) -> None:
    script(tools, "apt-get", f"printf '{_DATA.decode()}' > 'git_1%3a2.39_amd64.deb'")
    apt = Apt(tmp_path / "cache", quiet=True)
    path = apt.download([GIT])["git"]
    assert path.read_bytes() == _DATA
    apt.download([GIT])
    assert len(calls(tmp_path)) == 1
    path.write_bytes(b"packagE data")  # a damaged cache is fetched again
    assert apt.download([GIT])["git"].read_bytes() == _DATA
    assert len(calls(tmp_path)) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "printf other > 'git_1%3a2.39_amd64.deb'",
            "checksum differs from the package lists",
        ),
        ("exit 0", "git_1%3a2.39_amd64.deb missing"),
        (
            "echo 'E: Failed to fetch http://x 404' >&2; exit 100",
            "E: Failed to fetch http://x 404",
        ),
    ],
)
def test_download_errors_leave_nothing(
    tools: Path, tmp_path: Path, body: str, message: str
) -> None:
    script(tools, "apt-get", body)
    with pytest.raises(CorpusError, match=message):
        Apt(tmp_path / "cache", quiet=True).download([GIT])
    assert list((tmp_path / "cache" / "debs").iterdir()) == []
    assert list((tmp_path / "cache").glob("fetch-*")) == []


def test_not_a_debian_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CorpusError, match=r"apt-get: not found; .*--preset tiny or --input"):
        Apt(tmp_path / "cache")


def test_stale_lists_are_refreshed_once(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version that left the archive: refresh, try again, then fail with apt's words."""
    script(tools, "apt-cache", f"cat <<'X'\n{_SHOW}\nX")
    gone = 'case "$*" in *download*) echo "E: 404 gone" >&2; exit 100;; esac'
    script(tools, "apt-get", gone)
    with pytest.raises(CorpusError, match="E: 404 gone"):
        debian.collect("debian-small", tmp_path / "cache", jobs=1, refresh=False, quiet=True)
    assert sum(" update" in line for line in calls(tmp_path)) == 2
    assert "packages not offered" in capsys.readouterr().err

"""The real thing: download and build debian-small (183 MB). Set KDA_NETWORK_TESTS=1."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

RunCli = Callable[..., tuple[int, str, str]]
NoOverlap = Callable[[Path, Sequence[str]], None]


@pytest.mark.network
def test_debian_small(run_cli: RunCli, tmp_path: Path, assert_no_overlap: NoOverlap) -> None:
    cache = tmp_path / "cache"
    for name in ("a", "b"):  # the second run works from the cache
        code, _, err = run_cli(
            "build",
            "--preset",
            "debian-small",
            "--out",
            tmp_path / name,
            "--cache",
            cache,
        )
        assert code == 0, err
    manifest = json.loads((tmp_path / "a" / "MANIFEST.json").read_text())
    assert manifest["frozen_evaluation"]["test"]["found"] >= 990
    assert manifest["counts"]["pairs_kept"] > 75_000
    assert manifest["files"]["pretrain.zh.txt"]["bytes"] > 10_000_000
    assert manifest["files"]["pretrain.en.txt"]["bytes"] > 15_000_000
    assert_no_overlap(tmp_path / "a", ["test", "dev", "indomain", "mini"])
    assert run_cli("verify", tmp_path / "a")[0] == 0
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            twin = tmp_path / "b" / path.relative_to(tmp_path / "a")
            assert path.read_bytes() == twin.read_bytes(), path

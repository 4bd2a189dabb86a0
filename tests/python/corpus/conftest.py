"""Shared helpers of the corpus tests: everything offline, in temporary folders."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kda.corpus.overlap import grams


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: downloads packages (set KDA_NETWORK_TESTS=1)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("KDA_NETWORK_TESTS") == "1":
        return
    for item in items:
        if item.get_closest_marker("network"):
            item.add_marker(pytest.mark.skip(reason="network test: set KDA_NETWORK_TESTS=1"))


def _make_mo(messages: Sequence[tuple[bytes, bytes]], order: str = "<") -> bytes:
    """A .mo file as the GNU gettext manual lays it out (no hash table)."""
    rows = sorted(messages)
    count = len(rows)
    base = 28 + 16 * count
    tables: list[list[tuple[int, int]]] = [[], []]
    blob = b""
    for column in (0, 1):
        for row in rows:
            tables[column].append((len(row[column]), base + len(blob)))
            blob += row[column] + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, base)
    index = b"".join(struct.pack(f"{order}2I", *entry) for table in tables for entry in table)
    return head + index + blob


@pytest.fixture
def make_mo() -> Callable[..., bytes]:
    return _make_mo


def _assert_no_overlap(folder: Path, names: Sequence[str]) -> None:
    protected: dict[str, set[str]] = {"en": set(), "zh": set()}
    for name in names:
        for lang in ("en", "zh"):
            text = (folder / "eval" / f"{name}.{lang}").read_text(encoding="utf-8")
            for line in text.splitlines():
                protected[lang] |= set(grams(line, lang))
    assert protected["en"]
    for line in (folder / "sft.train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert set(row) == {"src", "tgt", "direction"}
        forward = row["direction"] == "en2zh"
        en, zh = (row["src"], row["tgt"]) if forward else (row["tgt"], row["src"])
        assert protected["en"].isdisjoint(grams(en, "en")), en
        assert protected["zh"].isdisjoint(grams(zh, "zh")), zh
    for lang in ("en", "zh"):
        text = (folder / f"pretrain.{lang}.txt").read_text(encoding="utf-8")
        for line in text.splitlines():
            assert protected[lang].isdisjoint(grams(line, lang)), line


@pytest.fixture
def assert_no_overlap() -> Callable[[Path, Sequence[str]], None]:
    """Check on the written files: no 8-gram or 13-gram of evaluation text in training text."""
    return _assert_no_overlap


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; returns (exit code, stdout, stderr)."""
    from kda.corpus.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run

"""Shared helpers of the corpus tests: everything offline, in temporary folders."""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

if importlib.util.find_spec("kda") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: downloads packages (set KDA_NETWORK_TESTS=1)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("KDA_NETWORK_TESTS") == "1":
        return
    for item in items:
        if item.get_closest_marker("network"):
            item.add_marker(pytest.mark.skip(reason="network test: set KDA_NETWORK_TESTS=1"))


def make_mo(messages: Sequence[tuple[bytes, bytes]], order: str = "<") -> bytes:
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
def run_cli(capsys: pytest.CaptureFixture[str]):
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

"""The status table says what the results say, and nothing better."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GOOGLE = """<testsuites><testsuite name="Ref/Forms">
<testcase name="ChunkedEqualsRecurrent/mild" status="run" result="completed" classname="Ref/Forms">
<properties><property name="max_difference" value="{difference}"/></properties>{failure}</testcase>
</testsuite><testsuite name="Gate">
<testcase name="ChunkedEqualsRecurrent/zero" status="run" result="completed" classname="Ref/Forms">
<properties><property name="max_difference" value="1e-14"/></properties></testcase>
<testcase name="Golden_Safe" status="run" result="skipped" classname="Gate">
<skipped message="limits_test.cpp:1&#x0A;no clock here"/></testcase>
<testcase name="Off" status="notrun" result="suppressed" classname="Gate"/>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest">
<testcase classname="tests.python.test_gate" name="test_a"><properties>
<property name="max_difference" value="7e-07"/><property name="other" value="text"/></properties></testcase>
<testcase classname="tests.python.test_gate" name="test_b"><properties>
<property name="max_difference" value="2e-07"/></properties></testcase>
<testcase classname="tests.python.test_cuda" name="test_c"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def table(tmp_path: Path, *texts: str) -> tuple[int, dict[str, list[str]]]:
    files = []
    for i, text in enumerate(texts):
        files.append(tmp_path / f"{i}.xml")
        files[-1].write_text(text)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "status_table.py"), *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [line.strip("|").split(" | ") for line in done.stdout.splitlines() if line[:2] == "| "]
    return done.returncode, {row[1].strip(): [cell.strip() for cell in row] for row in rows}


def test_passed_rows_have_their_largest_difference(tmp_path: Path) -> None:
    code, rows = table(tmp_path, GOOGLE.format(difference="3e-13", failure=""), PYTEST)
    assert code == 0
    assert rows["chunked form equals L1"][2:5] == ["PASSED", "3.0e-13", "1e-4"]
    assert rows["gate in PyTorch"][2:4] == ["PASSED", "7.0e-07"]
    assert "2 passed" in rows["gate in PyTorch"][5]


def test_skipped_and_missing_results_are_no_successes(tmp_path: Path) -> None:
    code, rows = table(tmp_path, GOOGLE.format(difference="3e-13", failure=""), PYTEST)
    assert code == 0
    assert rows["gate formulas, reference"][2] == "skipped"
    assert "no clock here" in rows["gate formulas, reference"][5]
    assert rows["chunk, CUDA"][2] == "skipped" and "no GPU" in rows["chunk, CUDA"][5]
    assert rows["viewer"][2] == "not run"


def test_a_failure_fails_the_row_and_the_command(tmp_path: Path) -> None:
    failed = GOOGLE.format(difference="3e-13", failure='<failure message="x"/>')
    code, rows = table(tmp_path, failed)
    assert code == 1 and rows["chunked form equals L1"][2] == "FAILED"


@pytest.mark.parametrize("difference", ["2e-4", "nan", "inf"])
def test_a_difference_above_the_limit_fails(difference: str, tmp_path: Path) -> None:
    code, rows = table(tmp_path, GOOGLE.format(difference=difference, failure=""))
    assert code == 1 and rows["chunked form equals L1"][2] == "ABOVE LIMIT"


def test_a_broken_file_is_an_error(tmp_path: Path) -> None:
    assert table(tmp_path, "<testsuites>")[0] == 2


def test_rows_match_tests_that_exist() -> None:
    """A renamed suite must not leave an empty row behind."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import status_table

    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.cpp")
    )
    for row in status_table.ROWS:
        names = [name for name in row.pattern.replace("\\w+", "").split("|") if name]
        words = {w for name in names for w in re.findall(r"[A-Za-z]\w{3,}", name)}
        found = [
            word for word in words if word in sources or any((ROOT / "tests").rglob(f"{word}.py"))
        ]
        assert found, row.test

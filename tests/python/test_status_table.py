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
<testcase classname="tests.python.test_recurrent" name="test_c"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


DEVICE = """<testsuites><testsuite name="All/ChunkConformance">
<testcase name="Forward_MatchesOracle/cuda_f32_dense" status="run" result="completed"
 classname="All/ChunkConformance"><properties>
<property name="max_difference" value="{difference}"/></properties>{failure}</testcase>
</testsuite></testsuites>"""


def run(tmp_path: Path, texts: tuple[str, ...], *options: str) -> subprocess.CompletedProcess[str]:
    files = []
    for i, text in enumerate(texts):
        files.append(tmp_path / f"{i}.xml")
        files[-1].write_text(text)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "status_table.py"), *options, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )


def table(
    tmp_path: Path, *texts: str, options: tuple[str, ...] = ()
) -> tuple[int, dict[str, list[str]]]:
    done = run(tmp_path, texts, *options)
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
    row = rows["recurrent decode in PyTorch"]
    assert row[2] == "skipped" and "no GPU" in row[5]
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


def summary(tmp_path: Path, text: str) -> tuple[int, Path]:
    out = tmp_path / "gpu.json"
    options = ("--summarise", "--machine", "GPU", "--commit", "abc1234", "--out", str(out))
    return run(tmp_path, (text,), *options).returncode, out


def test_rows_of_a_device_come_from_its_summary(tmp_path: Path) -> None:
    code, out = summary(tmp_path, DEVICE.format(difference="2e-6", failure=""))
    assert code == 0
    text = run(tmp_path, (PYTEST,), "--device", str(out)).stdout
    assert "one GPU at commit abc1234 ([results](gpu.json))" in text
    _, rows = table(tmp_path, PYTEST, options=("--device", str(out)))
    assert rows["fused forward, CUDA, f32"][2:5] == ["PASSED", "2.0e-06", "1e-4"]
    assert rows["fused backward, CUDA, f32"][2] == "not run"
    assert rows["gate in PyTorch"][2] == "PASSED"


@pytest.mark.parametrize(
    ("difference", "failure", "status"),
    [("2e-6", '<failure message="x"/>', "FAILED"), ("1", "", "ABOVE LIMIT")],
)
def test_a_failure_on_a_device_stays_one(
    difference: str, failure: str, status: str, tmp_path: Path
) -> None:
    code, out = summary(tmp_path, DEVICE.format(difference=difference, failure=failure))
    assert code == 1
    _, rows = table(tmp_path, PYTEST, options=("--device", str(out)))
    assert rows["fused forward, CUDA, f32"][2] == status


@pytest.mark.parametrize("text", ["", "{}", '{"machine": "a", "commit": "b", "rows": {"c": []}}'])
def test_a_summary_of_other_rows_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    done = run(tmp_path, (PYTEST,), "--device", str(path))
    assert done.returncode == 2 and "error" in done.stderr


def test_a_summary_names_machine_and_commit(tmp_path: Path) -> None:
    done = run(tmp_path, (PYTEST,), "--summarise", "--machine", "GPU")
    assert done.returncode == 2 and "--commit" in done.stderr


def test_rows_match_tests_that_exist() -> None:
    """A renamed suite must not leave an empty row behind."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import status_table

    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.cpp")
    )
    for row in status_table.ROWS + status_table.DEVICE_ROWS:
        names = [name for name in row.pattern.replace("\\w+", "").split("|") if name]
        words = {w for name in names for w in re.findall(r"[A-Za-z]\w{2,}", name)}
        found = [
            word for word in words if word in sources or any((ROOT / "tests").rglob(f"{word}.py"))
        ]
        assert found, row.test

"""Command line: usage errors, tiny preset, inspect, verify."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kda.corpus.progress import Progress

RunCli = Callable[..., tuple[int, str, str]]
NoOverlap = Callable[[Path, Sequence[str]], None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "VERB"),
        (("build", "--preset", "tiny"), "--out"),
        (
            ("build", "--out", "x"),
            "give --preset (debian-small, debian-full, tiny) or --input",
        ),
        (("build", "--preset", "huge", "--out", "x"), "invalid choice: 'huge'"),
        (
            ("build", "--preset", "tiny", "--out", "x", "--jobs", "0"),
            "whole number of 1 or more",
        ),
        (
            ("build", "--preset", "tiny", "--out", "x", "--lang", "zh"),
            "--lang needs --input",
        ),
        (("build", "--input", "/nonexistent", "--out", "x"), "no such file or folder"),
        (
            ("build", "--input", "/etc/hostname", "--out", "x"),
            "supported: .txt, .jsonl, .parquet",
        ),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli(*arguments)
    assert code == 2
    assert message in err
    assert err.startswith(" ".join(("python -m kda.corpus", *arguments[:1])) + ": error: ")
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_tiny_is_complete_and_reproducible(
    run_cli: RunCli, tmp_path: Path, assert_no_overlap: NoOverlap
) -> None:
    code, out, _ = run_cli("build", "--preset", "tiny", "--out", tmp_path / "a")
    assert code == 0
    assert "CC0-1.0" in out
    run_cli("build", "--preset", "tiny", "--out", tmp_path / "b", "--jobs", 2, "--quiet")
    names = sorted(
        p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()
    )
    assert {str(name) for name in names} == {
        "MANIFEST.json", "heldout.txt", "pretrain.en.txt", "pretrain.zh.txt", "sft.train.jsonl",
        *(f"eval/{name}.{end}" for name in ("dev", "mini", "test") for end in ("en", "zh", "meta")),
    }  # fmt: skip
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert_no_overlap(tmp_path / "a", ["test", "dev", "mini"])
    sizes = [(tmp_path / "a" / f"pretrain.{lang}.txt").stat().st_size for lang in ("zh", "en")]
    assert all(80_000 < size < 200_000 for size in sizes)
    assert len((tmp_path / "a" / "eval" / "mini.en").read_text().splitlines()) == 100


def test_inspect_and_verify(run_cli: RunCli, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    run_cli("build", "--preset", "tiny", "--out", folder, "--quiet")
    code, out, _ = run_cli("inspect", folder)
    assert code == 0
    assert "pretrain.zh.txt" in out
    assert "pairs_kept" in out
    assert run_cli("verify", folder)[0] == 0
    data = bytearray((folder / "pretrain.zh.txt").read_bytes())
    data[10] ^= 1
    (folder / "pretrain.zh.txt").write_bytes(bytes(data))
    (folder / "heldout.txt").write_text("short")
    (folder / "eval" / "dev.en").unlink()
    code, _, err = run_cli("verify", folder)
    assert code == 1
    assert "pretrain.zh.txt: sha256 differs" in err
    assert "heldout.txt: 5 bytes, the manifest says" in err
    assert "eval/dev.en: missing" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "not found; is "),
        ("{", "cannot read"),
        ("[]", "expected an object with 'files'"),
        (json.dumps({"format": 99, "files": {}}), "format 99 is not supported (1 is)"),
        (json.dumps({"format": 1, "files": {"../x": {}}}), "leaves the folder"),
    ],
)
def test_bad_manifest(run_cli: RunCli, tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "MANIFEST.json").write_text(text)
    code, _, err = run_cli("verify", tmp_path)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1


def test_module_runs_without_the_native_library(tmp_path: Path) -> None:
    """Importing torch would cost seconds and needs no place here."""
    script = (
        "import sys; from kda.corpus.cli import main; "
        f"code = main(['build', '--preset', 'tiny', '--quiet', '--out', {str(tmp_path / 'x')!r}]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "python"),
            "PATH": "/usr/bin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_progress_has_rate_and_eta(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("read", 4_000_000, "bytes", interval=0.0)
    time.sleep(0.01)
    progress.add(1_000_000)
    progress.finish("done")
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("read: 1.0 MB of 4.0 MB, ETA ")
    assert "/s)" in first
    assert last.startswith("read: 1.0 MB in ")


def test_floors_of_a_set(run_cli: RunCli, tmp_path: Path) -> None:
    """Copying scores the most where the target repeats the source; the memory finds its pair."""
    pytest.importorskip("sacrebleu")
    (tmp_path / "eval").mkdir()
    train = [
        ("the river is very cold today", "今天河水很冷"),
        ("a dog ran over the bridge", "一只狗跑过桥"),
    ]
    rows = [{"src": en, "tgt": zh, "direction": "en2zh"} for en, zh in train]
    (tmp_path / "sft.train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "eval" / "test.en").write_text("the dog ran over a bridge\nthe river is so cold\n")
    (tmp_path / "eval" / "test.zh").write_text("一只狗跑过桥\n今天河水很冷\n")
    code, out, _ = run_cli("floors", tmp_path)
    assert code == 0
    scores = {tuple(line.split()[:3]): line for line in out.splitlines() if line.startswith("test")}
    assert "BLEU 100.00  chrF 100.00" in scores["test", "en2zh", "nearest"]
    assert "BLEU   0.00" in scores["test", "en2zh", "copy"]
    assert "tok:zh" in out
    assert run_cli("floors", tmp_path, "--set", "nothing")[0] == 1


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_leaves_nothing(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    source = tmp_path / "big.txt"
    source.write_text("A line of the large file that takes a while to read.\n\n" * 600_000)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kda.corpus",
            "build",
            "--input",
            str(source),
            "--out",
            str(tmp_path / "out"),
            "--jobs",
            "2",
        ],
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3] / "python"), "PATH": "/usr/bin"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Jobs in the background of a script ignore SIGINT, and so would their children.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob(".out.building-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == expected
    assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.txt"]


def test_usage_names_the_program_that_was_typed(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDA_PROGRAM", "kda data")
    code, out, _ = run_cli("build", "--help")
    assert code == 0
    assert out.startswith("usage: kda data build ")

"""Reading a log that is being written, cut, rotated or is something else; the export loop."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda.monitor import cli, export, position
from kda.monitor.errors import MonitorError, UsageError
from kda.monitor.log import Cursor, Rewound, Run, find_run
from kda.monitor.points import Converter, Scalar, Text
from kda.monitor.survey import require_records
from monitor_run import FakeRun, monitor, only_checked


class ListSink:
    """Keeps its points where a killed process would have left them. ``budget`` calls are made
    before the "process" dies."""

    def __init__(self, disk: list[tuple[str, int, float]], replays: bool) -> None:
        self.disk = disk
        self.replays = replays
        self.calls = 0
        self.budget = 1 << 30
        self.caught = 0

    def _spend(self) -> None:
        self.calls += 1
        if self.calls > self.budget:
            raise KeyboardInterrupt

    def open(self, target) -> bool:
        count = 0 if self.replays or target.is_new else int(target.state.get("count", 0))
        del self.disk[count:]
        self._spend()
        return not self.replays and not target.is_new

    def write(self, batch) -> None:
        for line in batch:
            for point in line.points:
                self._spend()
                if isinstance(point, Scalar):
                    self.disk.append((point.name, point.step, point.value))

    def commit(self) -> dict:
        self._spend()
        return {"count": len(self.disk)}

    def caught_up(self) -> None:
        self.caught += 1

    def close(self) -> None:
        pass


def run_export(run: FakeRun, out: Path, sink: ListSink) -> list[str]:
    said: list[str] = []
    options = export.Options(Run(run.folder, run.log), out, "list")
    export.Exporter(options, lambda: sink, said.append, said.append).run()
    return said


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    made = FakeRun(tmp_path / "run")
    made.log.touch()
    return made


@pytest.mark.parametrize("replays", [False, True])
def test_dying_at_any_call_loses_and_doubles_nothing(
    run: FakeRun, tmp_path: Path, monkeypatch, replays: bool
) -> None:
    """The position or a point may be the last thing that was written."""
    monkeypatch.setattr(export, "_LINES_PER_COMMIT", 3)
    monkeypatch.setattr("os.fsync", lambda _: None)  # processes die here, not the machine
    run.steps(7, 11)
    for budget in itertools.count(0):
        out = tmp_path / f"out{budget}"
        disk: list = []
        first = ListSink(disk, replays)
        first.budget = budget
        try:
            run_export(run, out, first)
            break
        except KeyboardInterrupt:
            pass
        run_export(run, out, ListSink(disk, replays))
        assert only_checked(disk) == run.points()
    assert budget > 25
    assert first.caught == 1


@pytest.mark.parametrize("replays", [False, True])
def test_goes_on_where_it_was(run: FakeRun, tmp_path: Path, replays: bool) -> None:
    disk: list = []
    for last in (5, 5, 20, 33):
        done = max((step for _, step in run.points()), default=0)
        run.steps(done + 1, last)
        sink = ListSink(disk, replays)
        run_export(run, tmp_path / "out", sink)
        assert only_checked(disk) == run.points()
    place = position.load(tmp_path / "out" / "list.position.json")
    assert place is not None
    assert place.generation == 1
    assert place.bytes == run.log.stat().st_size


def test_says_what_is_new_and_what_was_there(run: FakeRun, tmp_path: Path) -> None:
    """Totals of a second export would read as if every point had been written twice."""
    disk: list = []
    run.steps(1, 5)
    said = run_export(run, tmp_path / "out", ListSink(disk, False))
    old = len(disk)
    assert said == [f"5 lines, {old} points"]
    run.steps(6, 9)
    said = run_export(run, tmp_path / "out", ListSink(disk, False))
    new = len(disk) - old
    assert said == [f"new: 4 lines, {new} points; there before: 5 lines, {old} points"]
    said = run_export(run, tmp_path / "out", ListSink(disk, False))
    assert said == [f"new: 0 lines, 0 points; there before: 9 lines, {old + new} points"]
    # A sink that is given the whole log again says so.
    again = [run_export(run, tmp_path / "other", ListSink(disk, True)) for _ in range(2)]
    assert again == [[f"9 lines, {old + new} points"]] * 2


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("back_to", [30, 20, 0])
def test_training_goes_back(run: FakeRun, tmp_path: Path, replays: bool, back_to: int) -> None:
    """Killed at step 37 and resumed from a checkpoint: no point of the lost steps stays."""
    run.steps(1, 37)
    disk: list = []
    run_export(run, tmp_path / "out", ListSink(disk, replays))
    run.resume(back_to)
    run.steps(back_to + 1, 50)
    said = run_export(run, tmp_path / "out", ListSink(disk, replays))
    assert any("training went back" in text for text in said)
    assert only_checked(disk) == run.points()
    place = position.load(tmp_path / "out" / "list.position.json")
    assert place is not None
    assert place.generation == 2


def test_a_resume_that_loses_nothing_is_no_rewind(run: FakeRun, tmp_path: Path) -> None:
    run.steps(1, 20)
    disk: list = []
    run_export(run, tmp_path / "out", ListSink(disk, False))
    run.resume(20)
    run.steps(21, 30)
    said = run_export(run, tmp_path / "out", ListSink(disk, False))
    assert not any("went back" in text for text in said)
    assert only_checked(disk) == run.points()


def test_position_of_a_replay_does_not_fall_behind(run: FakeRun, tmp_path: Path) -> None:
    """Else a replay that dies early forgets what a service has, and a rewind goes unseen."""
    run.steps(1, 40)
    run_export(run, tmp_path / "out", ListSink([], True))
    dies = ListSink([], True)
    dies.budget = 12
    with pytest.raises(KeyboardInterrupt):
        run_export(run, tmp_path / "out", dies)
    run.resume(30)
    run.steps(31, 45)
    said = run_export(run, tmp_path / "out", ListSink([], True))
    assert any("training went back" in text for text in said)


def test_cut_last_line_waits(run: FakeRun, tmp_path: Path) -> None:
    run.steps(1, 5)
    whole = run.points()
    line = json.dumps({"kind": "step", "step": 6, "loss": 1.0, "lr": 1.0, "tok_per_s": 1.0}) + "\n"
    run.put_text(line[:20])
    disk: list = []
    run_export(run, tmp_path / "out", ListSink(disk, False))
    assert only_checked(disk) == whole
    run.put_text(line[20:])
    run_export(run, tmp_path / "out", ListSink(disk, False))
    assert only_checked(disk) == run.points()
    assert ("train/loss", 6) in run.points()


def test_foreign_lines_are_left_out_and_named(run: FakeRun, tmp_path: Path) -> None:
    run.steps(1, 3)
    for text in ("\n", "not json\n", "[1]\n", '{"a":1}\n', '{"kind":"step","step":-1}\n', "\0\n"):
        run.put_text(text)
    run.put({"kind": "later", "step": 3, "new_number": 2.5, "text": "x", "yes": True})
    run.steps(4, 6)
    disk: list = []
    said = run_export(run, tmp_path / "out", ListSink(disk, False))
    assert only_checked(disk) == run.points()
    assert ("later/new_number", 3, 2.5) in disk
    assert not any(name in ("later/text", "later/yes") for name, _, _ in disk)
    left_out = [text for text in said if "left out" in text]
    assert len(left_out) == 5
    assert "line 5: not JSON" in left_out[0]


def test_rotated_logs_are_one(run: FakeRun, tmp_path: Path) -> None:
    disk: list = []
    run.steps(1, 10)
    run_export(run, tmp_path / "out", ListSink(disk, False))
    run.log.rename(run.folder / "metrics.jsonl.1")
    run.steps(11, 20)
    run_export(run, tmp_path / "out", ListSink(disk, False))
    (run.folder / "metrics.jsonl.1").rename(run.folder / "metrics.jsonl.2")
    run.log.rename(run.folder / "metrics.jsonl.1")
    run.steps(21, 25)
    said = run_export(run, tmp_path / "out", ListSink(disk, False))
    steps = [step for name, step, _ in disk if name == "train/loss"]
    assert steps == list(range(1, 26))
    assert not any("went back" in text for text in said)


def test_cursor_sees_a_rewind_at_once(run: FakeRun) -> None:
    run.steps(1, 30)
    cursor = Cursor(run.log)
    assert sum(1 for _ in cursor.advance()) == 33
    cursor.check()
    run.resume(20)
    run.steps(21, 60)  # longer than before
    with pytest.raises(Rewound):
        cursor.check()


def test_repeated_evaluation_is_one_point(run: FakeRun) -> None:
    converter = Converter()
    record = {"kind": "eval", "step": 10, "heldout_loss": 6.0}
    assert converter.points(record) == [Scalar("heldout/ce", 10, 6.0)]
    assert converter.points(record) == []
    assert converter.left_out == 1


def test_non_finite_numbers_and_samples() -> None:
    converter = Converter()
    record = {"kind": "step", "step": 1, "loss": "nan", "lr": "inf", "grad_norm": "-inf"}
    values = {point.name: point.value for point in converter.points(record)}
    assert math.isnan(values["train/loss"])
    assert values["train/lr"] == math.inf
    assert values["train/grad_norm"] == -math.inf
    skipped = converter.points({"kind": "step", "step": 2, "skipped": "loss is nan", "lr": 1})
    assert Scalar("train/skipped", 2, 1.0) in skipped
    sample = {"kind": "sample", "step": 2, "prompt": "p", "text": "t"}
    names = [converter.points(sample)[0] for _ in range(2)]
    assert names == [Text("sample/1", 2, "p", "t"), Text("sample/2", 2, "p", "t")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from(["step", "eval", "sample", "save", "resume", ""]) | _JSON,
            "step": st.integers() | _JSON,
            "loss": _JSON,
            "prompt": _JSON,
            "text": _JSON,
            "skipped": _JSON,
            "seconds": _JSON,
        },
    )
)
def test_any_record_gives_points_or_none(record: dict) -> None:
    for point in Converter().points(record):
        assert isinstance(point.step, int)
        assert point.step >= 0
        if isinstance(point, Scalar):
            assert isinstance(point.value, float)


def test_errors_name_the_run(tmp_path: Path, run: FakeRun) -> None:
    with pytest.raises(MonitorError, match="no such run folder or log"):
        find_run(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MonitorError, match=r"holds no metrics\.jsonl"):
        find_run(tmp_path / "empty")
    run.log.write_text("")
    with pytest.raises(MonitorError, match="no whole line in it yet"):
        require_records(find_run(run.folder))
    run.log.write_text("a,b,c\n1,2,3\n")
    with pytest.raises(MonitorError, match="none of its 2 lines"):
        require_records(find_run(run.folder))
    run.log.write_bytes(b"\x7fELF" * (5 << 20))
    with pytest.raises(MonitorError, match="longer than 16 MiB"):
        require_records(find_run(run.folder))


def test_one_exporter_at_a_time_and_one_run_per_output(tmp_path: Path, run: FakeRun) -> None:
    run.steps(1, 5)
    out = tmp_path / "out"
    out.mkdir()
    with (
        position.Lock(out / "list.lock"),
        pytest.raises(MonitorError, match="another exporter"),
    ):
        run_export(run, out, ListSink([], False))
    run_export(run, out, ListSink([], False))
    other = FakeRun(tmp_path / "other")
    other.seed = 3
    other.steps(1, 9)
    with pytest.raises(UsageError, match="holds the export of another run"):
        run_export(other, out, ListSink([], False))


def test_a_damaged_position_is_no_reason_to_guess(tmp_path: Path, run: FakeRun) -> None:
    run.steps(1, 5)
    run_export(run, tmp_path / "out", ListSink([], False))
    place = tmp_path / "out" / "list.position.json"
    for text in ("", "{}", "[]", '{"format": "kda-monitor-position", "version": 2}'):
        place.write_text(text)
        with pytest.raises(MonitorError, match="remove it and the output beside it"):
            run_export(run, tmp_path / "out", ListSink([], False))


def test_command_line_errors(tmp_path: Path, run: FakeRun, capsys, monkeypatch) -> None:
    run.steps(1, 5)
    for words, code, text in (
        ((), 2, "WHERE"),
        (("tensorbord", run.folder), 2, "invalid choice"),
        (("tensorboard", tmp_path / "none"), 1, "no such run folder"),
        (("swanlab", run.folder, "--mode", "sky"), 2, "expected one of online, cloud"),
        (("swanlab", run.folder, "--mode", "disabled"), 0, ""),
        (("wandb", run.folder, "--interval", "0"), 2, "0.05 to 3600"),
    ):
        assert run_main(words) == code
        said = capsys.readouterr().err
        assert text in said
        assert said.count("\n") <= 1
    monkeypatch.setenv("SWANLAB_MODE", "sky")
    assert run_main(("swanlab", run.folder)) == 2
    assert "SWANLAB_MODE" in capsys.readouterr().err


def run_main(words: tuple) -> int:
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("words", "package"),
    [(("tensorboard",), "tensorboard"), (("swanlab", "--mode", "offline"), "swanlab"),
     (("wandb", "--mode", "offline"), "wandb")],
)  # fmt: skip
def test_a_missing_library_is_named_with_its_command(
    tmp_path: Path, run: FakeRun, words: tuple[str, ...], package: str
) -> None:
    run.steps(1, 5)
    blocker = tmp_path / "block" / f"{package}.py"
    blocker.parent.mkdir()
    blocker.write_text(f"raise ModuleNotFoundError('No module named {package}', name='{package}')")
    done = monitor(
        words[0], run.folder, *words[1:], PYTHONPATH=f"{blocker.parent}:{Path('python').resolve()}"
    )
    assert done.returncode == 1
    assert f"-m pip install {package}" in done.stderr
    assert "Traceback" not in done.stderr

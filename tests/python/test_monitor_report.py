"""`kda report`: what is on the page, what must never become a part of it, and its errors."""

from __future__ import annotations

import html.parser
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda.monitor.errors import MonitorError
from kda.monitor.report import cli, tables
from kda.monitor.report.charts import MAX_POINTS, chart_data, thinned
from kda.monitor.report.load import RunData, load_run, run_names
from monitor_run import FakeRun, need

EVIL = '</script><script>document.title="owned"</script><img src=x onerror="document.title=1">'


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    made = FakeRun(tmp_path / "run", total_steps=40)
    made.steps(1, 40)
    made.put({"kind": "sample", "step": 20, "prompt": "old prompt", "text": "old text"})
    made.put({"kind": "sample", "step": 40, "prompt": "猫", "text": "a cat", "finish": "stop"})
    made.save(40)
    return made


def eval_report(**more: object) -> dict:
    section = {
        "set": "test",
        "direction": "en2zh",
        "sentences": 8,
        "bleu": 12.345,
        "chrf": 23.456,
        "floor": {"bleu": 1.5, "chrf": 9.25},
        "success_rate": 0.625,
        "language_match_rate": 1.0,
        "copy_rate": 0.0,
        "empty_rate": 0.125,
        "repetition_rate": 0.0,
        "translates": True,
    }
    return {
        "format": "kda-eval-mt",
        "version": 1,
        "system": "runs/sft/step-000040",
        "stage": "fine-tuned",
        "decoding": {"beam": 4},
        "notes": ["A note."],
        "sections": [{**section, **more}],
    }


def page(*words: object) -> str:
    out = Path(str(words[-1]))
    assert cli.main([*map(str, words[:-1]), "--out", str(out)]) == 0
    return out.read_text("utf-8")


class _Outline(html.parser.HTMLParser):
    """Tags with attributes, and the text outside scripts, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self._skips = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skips += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skips -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skips:
            self.text += data


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_one_run(run: FakeRun, tmp_path: Path) -> None:
    need("plotly")
    (run.folder / "mt").mkdir()
    (run.folder / "mt" / "report.json").write_text(json.dumps(eval_report()))
    (run.folder / "other").mkdir()
    (run.folder / "other" / "report.json").write_text('{"format": "something else"}')
    text = page(run.folder, tmp_path / "page.html")
    shown = _Outline(text).text
    for expected in (
        "40 of 40 (complete)",
        "154 k",
        "6.4600 at step 40",  # best held-out cross entropy
        "1.02 k tokens/s",
        "1.00 GiB",
        "old text",
        "猫",
        "12.35",
        "62.5",
        "beam 4",
        "hidden_size",
    ):
        assert expected in shown, expected
    charts = {chart["key"]: chart for chart in data_of(text)["charts"]}
    assert {"loss", "heldout", "lr", "grad", "speed", "memory"} <= set(charts)
    assert "success" not in charts
    loss = charts["loss"]["traces"][0]
    assert loss["step"] == list(range(1, 41))
    assert loss["y"][0] == pytest.approx(6.999)
    assert loss["tokens"][-1] == 1024 * 40


def test_nothing_comes_from_elsewhere(run: FakeRun, tmp_path: Path) -> None:
    need("plotly")
    text = page(run.folder, tmp_path / "page.html")
    tags = _Outline(text).tags
    assert [tag for tag, _ in tags if tag in ("link", "img", "iframe", "object", "base")] == []
    assert not any("src" in attributes or "href" in attributes for _, attributes in tags)
    (policy,) = (a["content"] for t, a in tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert sum(tag == "script" for tag, _ in tags) == 3  # data, library, own


def evil_run(folder: Path) -> FakeRun:
    run = FakeRun(folder, total_steps=10)
    run.configure(10, sample_prompt=[EVIL], data=EVIL)
    config = json.loads((folder / "config.json").read_text())
    config[EVIL] = {EVIL: EVIL}
    (folder / "config.json").write_text(json.dumps(config))
    run.steps(1, 10)
    run.put({"kind": "sample", "step": 10, "prompt": EVIL, "text": EVIL, "finish": EVIL})
    run.put({"kind": "step", "step": 11, "skipped": EVIL, "lr": 1})
    run.put({"kind": EVIL, "step": 11, EVIL: 3.0})
    folder = folder / EVIL.replace("/", "_")
    folder.mkdir()
    report = eval_report(set=EVIL, direction=EVIL, sentences=EVIL, translates=EVIL)
    report.update(system=EVIL, stage=EVIL, notes=[EVIL, {EVIL: 1}], decoding={"beam": EVIL})
    (folder / "report.json").write_text(json.dumps(report))
    return run


def test_texts_of_a_run_stay_texts(tmp_path: Path) -> None:
    need("plotly")
    plain = FakeRun(tmp_path / "plain", total_steps=10)
    plain.steps(1, 10)
    plain.put({"kind": "sample", "step": 10, "prompt": "p", "text": "t", "finish": "f"})
    evil = evil_run(tmp_path / EVIL.replace("/", "_"))
    text = page(evil.folder, "--title", EVIL, tmp_path / "evil.html")
    kinds = {tag for tag, _ in _Outline(page(plain.folder, tmp_path / "plain.html")).tags}
    outline = _Outline(text)
    assert {tag for tag, _ in outline.tags} - kinds <= {"h3", "details", "summary", "ul", "li"}
    assert sum(tag == "script" for tag, _ in outline.tags) == 3
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)
    assert outline.text.count(EVIL) >= 8
    names = data_of(text)["runs"]
    assert names == [EVIL.replace("/", "_")]


def test_a_browser_runs_no_text_of_a_run(tmp_path: Path) -> None:
    need("plotly")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium to open the page with")
    evil = evil_run(tmp_path / "evil")
    page(evil.folder, "--title", f"safe {EVIL}", tmp_path / "evil.html")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"file://{tmp_path / 'evil.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outline = _Outline(done.stdout)
    assert "<title>safe " in done.stdout  # not "owned"
    drawn = [a for t, a in outline.tags if t == "svg" and "main-svg" in str(a.get("class"))]
    assert len(drawn) >= 6  # the charts are there: our own scripts did run


def test_several_runs_and_their_differences(run: FakeRun, tmp_path: Path) -> None:
    need("plotly")
    other = FakeRun(tmp_path / "b" / "run", total_steps=20)
    other.configure(20, lr=1e-3)
    other.steps(1, 20)
    text = page(run.folder, other.folder, tmp_path / "page.html")
    assert data_of(text)["runs"] == [f"{tmp_path.name}/run", "b/run"]
    rows = re.findall(r'<tr class="(diff|same)"><th scope="row"><code>(.*?)</code>', text)
    kinds = {key: kind for kind, key in rows}
    assert kinds["lr"] == "diff"
    assert kinds["total_steps"] == "diff"
    assert kinds["hidden_size"] == "same"
    assert "only the 2 settings that differ" in text
    assert {trace["run"] for trace in data_of(text)["charts"][0]["traces"]} == {0, 1}


def test_names_are_told_apart(tmp_path: Path) -> None:
    assert run_names([Path("/a/x"), Path("/a/y")]) == ["x", "y"]
    with pytest.raises(MonitorError, match="twice"):
        run_names([tmp_path, tmp_path])


def test_a_run_that_was_resumed_skipped_and_cut(run: FakeRun) -> None:
    run.resume(20)
    run.steps(21, 25)
    run.put({"kind": "step", "step": 26, "skipped": "the loss is nan", "lr": 1e-4})
    run.put({"kind": "step", "step": 27, "loss": "nan", "lr": 1e-4})
    run.put_text("not json\n")
    run.put_text('{"kind":"step","step":28,"lo')
    data = load_run(run.folder, "r")
    assert data.resumed_from == [20]
    assert data.skipped == [(26, "the loss is nan")]
    assert data.last_step == 27
    assert any("1 lines" in fault for fault in data.faults)
    loss = next(t for t in chart_data([data])[0]["traces"] if t["label"].endswith("each step"))
    assert loss["y"][-1] is None
    assert any("train/loss: 1 of 26 values" in fault for fault in data.faults)
    shown = tables.overview([data])
    assert "27 of 40 (not complete)" in shown
    assert "the loss is nan" in shown


def test_errors_are_one_line_each(run: FakeRun, tmp_path: Path, capsys) -> None:
    need("plotly")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metrics.jsonl").touch()
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("a,b\n1,2\n")
    for words, code, text in (
        ([tmp_path / "none"], 1, "no such run folder or log"),
        ([tmp_path], 1, "holds no metrics.jsonl"),
        ([empty], 1, "no whole line in it yet"),
        ([foreign, "--out", tmp_path / "x"], 1, "not a metrics log: none of its 2 lines"),
        ([run.folder, run.folder, "--out", tmp_path / "x"], 1, "the same run was given twice"),
        ([run.folder, tmp_path / "none"], 2, "--out: expected a file"),
        ([run.folder, "--out", tmp_path], 2, "is a folder"),
        ([run.folder, "--eval", foreign], 1, "not JSON; expected a report.json"),
        ([run.folder, "--eval", tmp_path / "none"], 1, "no report.json"),
    ):
        assert cli.main([str(word) for word in words]) == code, words
        said = capsys.readouterr().err
        assert text in said
        assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_page_takes_the_place_of_files_only(run: FakeRun, tmp_path: Path, capsys) -> None:
    need("plotly")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert cli.main([str(run.folder), "--out", str(pipe)]) == 1
    assert "it is a folder, device, pipe or socket" in capsys.readouterr().err
    assert pipe.is_fifo()
    link, target = tmp_path / "link.html", tmp_path / "target.html"
    target.write_text("old")
    link.symlink_to(target)
    assert cli.main([str(run.folder), "--out", str(link)]) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<!doctype html>")


def test_named_evaluations(run: FakeRun, tmp_path: Path) -> None:
    need("plotly")
    place = tmp_path / "results"
    place.mkdir()
    (place / "report.json").write_text(json.dumps(eval_report(bleu=None, floor=None)))
    text = page(run.folder, "--eval", place, tmp_path / "page.html")
    shown = _Outline(text).text
    assert "runs/sft/step-000040" in shown
    assert "23.46" in shown


@settings(max_examples=60)
@given(st.lists(st.floats(allow_nan=True, width=32), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_extremes_and_gaps(values: list[float], limit: int) -> None:
    kept = thinned(values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 4) + 2 or len(values) <= limit
    assert {0, len(values) - 1} <= set(kept)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        shown = [values[i] for i in kept if math.isfinite(values[i])]
        assert (min(shown), max(shown)) == (min(finite), max(finite))
    if len(finite) < len(values):
        assert any(not math.isfinite(values[i]) for i in kept)


def test_a_long_run_stays_small(run: FakeRun) -> None:
    data = RunData("long", load_run(run.folder, "x").run, {})
    series = load_run(run.folder, "x").series["train/loss"]
    series.steps = list(range(100_000))
    series.values = [float(i % 977) for i in range(100_000)]
    data.series["train/loss"] = series
    (chart,) = chart_data([data])
    assert len(chart["traces"][0]["step"]) <= MAX_POINTS + 2

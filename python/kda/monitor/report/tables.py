"""The parts of the page that are HTML. Every text of a run passes through ``esc``."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from kda.monitor.points import number
from kda.monitor.report.load import EvalReport, RunData, Sample, Series

#: Where a run lies is no difference between two runs.
_PLACES = {"train.out", "train.cache", "train.threads"}
_SAMPLE_STEPS = 6
_SAMPLE_CHARS = 2000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def esc(value: object) -> str:
    """Text as the content of an element or attribute."""
    return escape(_CONTROL.sub("�", str(value)), quote=True)


def _count(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.0f}"


def _bytes(value: float) -> str:
    for size, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _finite(series: Series | None) -> list[float]:
    return [] if series is None else [v for v in series.values if math.isfinite(v)]


def _last(data: RunData, name: str) -> float | None:
    found = _finite(data.series.get(name))
    return found[-1] if found else None


def _best(data: RunData) -> tuple[float, int] | None:
    series = data.series.get("heldout/ce")
    pairs = [] if series is None else list(zip(series.values, series.steps, strict=True))
    return min((pair for pair in pairs if math.isfinite(pair[0])), default=None)


def _at_best(data: RunData, name: str) -> float | None:
    best, series = _best(data), data.series.get(name)
    if best is None or series is None or best[1] not in series.steps:
        return None
    return series.values[series.steps.index(best[1])]


def _shown(value: float | None, text: Callable[[float], str]) -> str | None:
    return None if value is None else text(value)


def _progress(data: RunData) -> str:
    if data.total_steps is None:
        return f"{data.last_step:,}"
    state = "complete" if data.last_step >= data.total_steps else "not complete"
    return f"{data.last_step:,} of {data.total_steps:,} ({state})"


def _best_text(data: RunData) -> str | None:
    best = _best(data)
    return None if best is None else f"{best[0]:.4f} at step {best[1]:,}"


def _median(data: RunData, name: str) -> float | None:
    found = _finite(data.series.get(name))
    return statistics.median(found) if found else None


def _peak(data: RunData, name: str) -> float | None:
    return max(_finite(data.series.get(name)), default=None)


def _saved(data: RunData) -> str | None:
    if not data.saves:
        return None
    size = number(data.saves[-1].get("bytes"))
    each = f", {_bytes(size)} each" if size else ""
    return f"{len(data.saves)}{each}"


def _setting(data: RunData, key: str) -> str | None:
    value = data.config.get(key)
    return None if value is None or value == "" else str(value)


#: Row -> cell of a run, or None when there is nothing to say; rows without any are left out.
_OVERVIEW: tuple[tuple[str, Callable[[RunData], str | None]], ...] = (
    ("task", lambda d: _setting(d, "train.task")),
    ("model", lambda d: _setting(d, "model.model_type")),
    ("parameters", lambda d: _shown(number(d.config.get("derived.parameters")), _count)),
    ("steps", _progress),
    ("tokens", lambda d: _shown(_last(d, "train/tokens"), _count)),
    ("passes over the data", lambda d: _shown(_last(d, "train/epoch"), lambda v: f"{v:.3g}")),
    ("last training loss", lambda d: _shown(_last(d, "train/loss"), lambda v: f"{v:.4f}")),
    ("its moving average", lambda d: _shown(_last(d, "train/loss_ema"), lambda v: f"{v:.4f}")),
    ("best held-out cross entropy", _best_text),
    (
        "bits per byte there",
        lambda d: _shown(_at_best(d, "heldout/bits_per_byte"), lambda v: f"{v:.4f}"),
    ),
    (
        "sentences translated, last",
        lambda d: _shown(_last(d, "mt/success_rate"), lambda v: f"{100 * v:.1f} %"),
    ),
    ("throughput, median", lambda d: _shown(_median(d, "speed/tok_per_s"), _rate)),
    ("step, median", lambda d: _shown(_median(d, "speed/step_ms"), lambda v: f"{v:,.0f} ms")),
    ("time of work", lambda d: _duration(d.seconds)),
    ("memory of the process, peak", lambda d: _shown(_peak(d, "memory/rss_bytes"), _bytes)),
    ("memory of the GPU, peak", lambda d: _shown(_peak(d, "memory/gpu_bytes"), _bytes)),
    ("device", lambda d: _setting(d, "derived.device")),
    ("activations", lambda d: _setting(d, "train.dtype")),
    ("checkpoints written", _saved),
    (
        "resumed from step",
        lambda d: ", ".join(f"{step:,}" for step in d.resumed_from[-10:]) or None,
    ),
    ("steps skipped", lambda d: str(len(d.skipped)) if d.skipped else None),
)


def _rate(value: float) -> str:
    return f"{_count(value)} tokens/s"


def _head(first: str, runs: Sequence[RunData]) -> str:
    cells = "".join(
        f'<th scope="col"><i class="dot r{i % 8}"></i>{esc(run.name)}</th>'
        for i, run in enumerate(runs)
    )
    return f'<thead><tr><th scope="col">{esc(first)}</th>{cells}</tr></thead>'


def overview(runs: Sequence[RunData]) -> str:
    rows = []
    for label, cell in _OVERVIEW:
        cells = [cell(run) for run in runs]
        if any(text is not None for text in cells):
            shown = "".join(f"<td>{esc('–' if text is None else text)}</td>" for text in cells)
            rows.append(f'<tr><th scope="row">{esc(label)}</th>{shown}</tr>')
    faults = "".join(
        f"<li><b>{esc(run.name)}</b>: {esc(fault)}</li>" for run in runs for fault in run.faults
    )
    notes = f'<ul class="notes">{faults}</ul>' if faults else ""
    body = "".join(rows)
    return f'<div class="wide"><table>{_head("", runs)}<tbody>{body}</tbody></table></div>{notes}'


def _config_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def differing(runs: Sequence[RunData]) -> set[str]:
    """Keys of the configuration whose values are not equal in all runs."""
    keys = {key for run in runs for key in run.config} - _PLACES
    return {key for key in keys if len({_config_text(run.config.get(key)) for run in runs}) > 1}


def configuration(runs: Sequence[RunData]) -> str:
    parts: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for run in runs for key in run.config):
        parts.setdefault(key.partition(".")[0], []).append(key)
    if not parts:
        return "<p>There is no configuration beside the log.</p>"
    different = differing(runs)
    rows = []
    for part, keys in parts.items():
        if keys != [part]:
            kind = "part" if different.intersection(keys) else "part same"
            head = f'<th colspan="{len(runs) + 1}" scope="colgroup">{esc(part)}</th>'
            rows.append(f'<tr class="{kind}">{head}</tr>')
        for key in keys:
            kind = "diff" if key in different else "same"
            cells = "".join(
                f"<td>{esc(_config_text(run.config.get(key, '–')))}</td>" for run in runs
            )
            name = esc(key.partition(".")[2] or key)
            rows.append(f'<tr class="{kind}"><th scope="row"><code>{name}</code></th>{cells}</tr>')
    switch = ""
    if len(runs) > 1:
        switch = (
            '<label class="switch"><input type="checkbox" id="only-diff" checked> '
            f"only the {len(different)} settings that differ</label>"
        )
    body = "".join(rows)
    table = f'<table id="config">{_head("setting", runs)}<tbody>{body}</tbody></table>'
    return f'{switch}<div class="wide">{table}</div>'


def _one_sample(sample: Sample) -> str:
    text = sample.text
    cut = len(text) > _SAMPLE_CHARS
    shown = esc(text[:_SAMPLE_CHARS]) + ("…" if cut else "")
    finish = f'<span class="muted"> [{esc(sample.finish)}]</span>' if sample.finish else ""
    arrow = "\n→ " if sample.finish == "translation" else ""
    return f'<p class="sample"><b>{esc(sample.prompt)}</b>{arrow}<span>{shown}</span>{finish}</p>'


def samples(runs: Sequence[RunData]) -> str:
    """Of each run the texts of the last step that has any, older ones folded away."""
    parts = []
    for index, run in enumerate(runs):
        by_step: dict[int, list[Sample]] = {}
        for sample in run.samples:
            by_step.setdefault(sample.step, []).append(sample)
        if not by_step:
            continue
        steps = sorted(by_step)
        chosen = [steps[i * (len(steps) - 1) // max(1, _SAMPLE_STEPS - 1)] for i in range(6)]
        blocks = []
        for step in sorted(set(chosen), reverse=True):
            is_open = " open" if step == steps[-1] else ""
            inside = "".join(_one_sample(sample) for sample in by_step[step])
            blocks.append(f"<details{is_open}><summary>step {step:,}</summary>{inside}</details>")
        shown = len(set(chosen))
        more = f" ({shown} of {len(steps)} times shown)" if shown < len(steps) else ""
        title = f'<h3><i class="dot r{index % 8}"></i>{esc(run.name)}{esc(more)}</h3>'
        parts.append(title + "".join(blocks))
    return "".join(parts)


def _percent(value: Any) -> str:
    x = number(value)
    return "–" if x is None else f"{100 * x:.1f}"


def _score(value: Any) -> str:
    x = number(value)
    return "–" if x is None else f"{x:.2f}"


_EVAL_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("sentences", lambda s: str(s.get("sentences", "–"))),
    ("BLEU", lambda s: _score(s.get("bleu"))),
    ("floor", lambda s: _score(_floor(s, "bleu"))),
    ("chrF", lambda s: _score(s.get("chrf"))),
    ("floor", lambda s: _score(_floor(s, "chrf"))),
    ("success %", lambda s: _percent(s.get("success_rate"))),
    ("language %", lambda s: _percent(s.get("language_match_rate"))),
    ("copy %", lambda s: _percent(s.get("copy_rate"))),
    ("empty %", lambda s: _percent(s.get("empty_rate"))),
    ("loop %", lambda s: _percent(s.get("repetition_rate"))),
    ("translates", lambda s: {True: "yes", False: "no"}.get(s.get("translates"), "–")),
)


def _floor(section: dict[str, Any], key: str) -> Any:
    floor = section.get("floor")
    return floor.get(key) if isinstance(floor, dict) else None


def _eval_rows(head: str, index: int | None, report: EvalReport) -> list[str]:
    sections = report.data.get("sections")
    rows = []
    for section in sections if isinstance(sections, list) else []:
        if not isinstance(section, dict):
            continue
        cells = "".join(f'<td class="n">{esc(cell(section))}</td>' for _, cell in _EVAL_COLUMNS)
        task = f"{section.get('set', '?')} {section.get('direction', '?')}"
        dot = "" if index is None else f'<i class="dot r{index % 8}"></i>'
        rows.append(f"<tr><td>{dot}{esc(head)}</td><td>{esc(task)}</td>{cells}</tr>")
    return rows


def _eval_note(head: str, report: EvalReport) -> str:
    data = report.data
    decoding = data.get("decoding")
    how = decoding if isinstance(decoding, dict) else {}
    facts = [f"checkpoint {data.get('system', '?')}", f"beam {how.get('beam', '?')}"]
    if data.get("stage"):
        facts.insert(1, str(data["stage"]))
    notes = data.get("notes")
    said = " ".join(str(note) for note in notes) if isinstance(notes, list) else ""
    return f"<li><b>{esc(head)}</b> ({esc(report.path)}): {esc(', '.join(facts))}. {esc(said)}</li>"


def evaluations(runs: Sequence[RunData], others: Sequence[EvalReport]) -> str:
    """One table over the reports of `kda eval mt` of all runs, and those given by name."""
    rows: list[str] = []
    notes: list[str] = []
    for index, run in enumerate(runs):
        for report in run.evals:
            head = f"{run.name} · {report.path.rpartition('/')[0]}".rstrip(" ·")
            rows += _eval_rows(head, index, report)
            notes.append(_eval_note(head, report))
    for report in others:
        head = str(report.data.get("system", report.path))
        rows += _eval_rows(head, None, report)
        notes.append(_eval_note(head, report))
    if not rows:
        return ""
    heads = "".join(f'<th class="n" scope="col">{esc(name)}</th>' for name, _ in _EVAL_COLUMNS)
    return (
        '<div class="wide"><table><thead><tr><th scope="col">run</th><th scope="col">set</th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<ul class="notes">{"".join(notes)}</ul>'
    )

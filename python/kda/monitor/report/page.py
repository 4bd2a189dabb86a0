"""Puts the page together: no network, no script but its own two, no text that could be one."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import kda
from kda.monitor.errors import require
from kda.monitor.report import tables
from kda.monitor.report.charts import chart_data
from kda.monitor.report.load import EvalReport, RunData


def _script_json(value: Any) -> str:
    """JSON inside <script>: without "<" no tag can end or begin there."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _hash_source(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _section(key: str, title: str, body: str) -> str:
    return f'<section id="{key}"><h2>{title}</h2>{body}</section>' if body else ""


def _chart_places(charts: Sequence[dict[str, Any]]) -> str:
    return (
        '<div class="charts">'
        + "".join(
            f'<figure id="fig-{chart["key"]}" class="{"big" if chart["key"] == "loss" else ""}">'
            f"<figcaption>{tables.esc(chart['title'])}"
            f'<span class="muted"> {tables.esc(chart["unit"])}</span></figcaption>'
            f'<div class="plot" id="plot-{chart["key"]}"></div></figure>'
            for chart in charts
        )
        + "</div>"
    )


def _run_switches(runs: Sequence[RunData]) -> str:
    if len(runs) < 2:
        return ""
    return "".join(
        f'<label><input type="checkbox" class="run" value="{i}" checked>'
        f'<i class="dot r{i % 8}"></i>{tables.esc(run.name)}</label>'
        for i, run in enumerate(runs)
    )


def render(runs: Sequence[RunData], evals: Sequence[EvalReport], title: str) -> str:
    """The page as text. Needs plotly for the chart library that the page carries in itself."""
    plotly: str = require("plotly.offline", "plotly").get_plotlyjs()
    folder = resources.files("kda.monitor.report")
    style = (folder / "page.css").read_text("utf-8")
    script = (folder / "page.js").read_text("utf-8")
    charts = chart_data(runs)
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        f"form-action 'none'; script-src {_hash_source(plotly)} {_hash_source(script)}"
    )
    body = "".join(
        (
            _section("overview", "Overview", tables.overview(runs)),
            _section("curves", "Curves", _chart_places(charts)),
            _section("evaluation", "Translation", tables.evaluations(runs, evals)),
            _section("samples", "Samples", tables.samples(runs)),
            _section("configuration", "Configuration", tables.configuration(runs)),
        )
    )
    data = {"runs": [run.name for run in runs], "charts": charts}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{tables.esc(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{tables.esc(title)}</h1>
<div class="controls" id="controls">
<label>over <select id="axis"><option value="step">steps</option>
<option value="tokens">tokens</option><option value="hours">hours of work</option></select></label>
<label><input type="checkbox" id="log-loss"> loss on a logarithmic scale</label>
{_run_switches(runs)}
<button id="theme" type="button">light / dark</button>
</div>
</header>
<main>{body}</main>
<footer>kda {tables.esc(kda.__version__)} · the page is complete in itself and loads nothing</footer>
<noscript>The curves need JavaScript; the tables do not.</noscript>
<script type="application/json" id="data">{_script_json(data)}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""

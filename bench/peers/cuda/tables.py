"""Markdown tables from the JSON of speed.py, precision.py and stages.py.

python bench/peers/cuda/tables.py speed FILE.json
python bench/peers/cuda/tables.py precision FILE.json [FILE.json ...]
python bench/peers/cuda/tables.py stages FILE.json
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

OURS, PEER = "kda", "FLA"
FACTOR, FLOOR = 1.25, 1e-4
#: largest relative RMS error that FLA's own tests allow
LIMITS = {
    "o": 5e-3, "final state": 5e-3, "dq": 8e-3, "dk": 8e-3, "dv": 8e-3, "dh0": 8e-3,
    "dg": 2e-2, "dbeta": 2e-2, "d dt_bias": 8e-3,
}  # fmt: skip
#: what the GPU's memory moves, an elementwise copy
BYTES_PER_MS = 4.3e9


def number(value: float) -> str:
    return f"{value:.1e}" if math.isfinite(value) else "NaN"


def triple(errors: dict[str, float]) -> str:
    return " / ".join(number(errors[name]) for name in ("max", "mean", "ratio"))


def verdict(quantity: str, ours: float, peer: float | None) -> str:
    found = []
    if not math.isfinite(ours):
        return "**not finite**"
    if quantity in LIMITS and ours > LIMITS[quantity]:
        found.append(f"**over {LIMITS[quantity]}**")
    if peer is not None and math.isfinite(peer) and ours > max(FACTOR * peer, FLOOR):
        found.append(f"**{ours / peer:.2f} x**")
    return ", ".join(found)


def precision(files: list[Path]) -> list[str]:
    loaded = [json.loads(path.read_text()) for path in files]
    by_gate: dict[str, dict[str, Any]] = {}  # engines may come from different files
    for row in (row for data in loaded for row in data["rows"]):
        merged = by_gate.setdefault(row["gate"], {"gate": row["gate"], "errors": {}, "skipped": {}})
        merged["errors"].update(row["errors"])
        merged["skipped"].update(row["skipped"])
    rows = list(by_gate.values())
    lines = [
        f"Machine: {json.dumps(loaded[0]['machine'])}",
        "",
        f"Case: {loaded[0]['case'].removesuffix(', standard gate')}; each cell: largest error / "
        "mean error / RMS error over RMS of the reference.",
        "",
        f"| gate | tensor | {OURS} | {PEER} | flag |",
        "| --- | --- | --- | --- | --- |",
    ]
    flagged = total = better = 0
    ratios: dict[str, list[float]] = {}
    spans: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        ours, peer = row["errors"].get(OURS), row["errors"].get(PEER)
        if ours is None:
            lines.append(f"| {row['gate']} | all | {row['skipped'].get(OURS)} | | |")
            continue
        for quantity, mine in ours.items():
            theirs = peer[quantity] if peer else None
            flag = verdict(quantity, mine["ratio"], theirs["ratio"] if theirs else None)
            total += 1
            flagged += bool(flag)
            if theirs is not None:
                better += mine["ratio"] <= theirs["ratio"] or math.isnan(theirs["ratio"])
                if theirs["ratio"] > 0.0:
                    ratios.setdefault(quantity, []).append(mine["ratio"] / theirs["ratio"])
                spans.setdefault(quantity, []).append((mine["ratio"], theirs["ratio"]))
            shown = triple(theirs) if theirs else row["skipped"].get(PEER, "")
            lines.append(f"| {row['gate']} | {quantity} | {triple(mine)} | {shown} | {flag} |")
    lines.append("")
    lines.append(
        f"{total} rows, {flagged} flagged (ratio over {FACTOR} x {PEER}'s and over {FLOOR:g}, or "
        f"over the absolute limit); {OURS} at or below {PEER} in {better}."
    )
    if spans:
        lines += [
            "",
            f"| tensor | {OURS}, smallest .. largest | {PEER} | median of {OURS} / {PEER} | largest |",
            "| --- | --- | --- | --- | --- |",
        ]
    for quantity, pairs in spans.items():
        ends = [f"{number(min(x))} .. {number(max(x))}" for x in zip(*pairs, strict=True)]
        each = ratios.get(quantity, [math.nan])
        lines.append(
            f"| {quantity} | {ends[0]} | {ends[1]} | {statistics.median(each):.2f} | "
            f"{max(each):.2f} |"
        )
    return lines


def cell(row: dict[str, Any] | None, part: str) -> str:
    if row is None or part not in row:
        return "wrong" if row and str(row.get("skipped", "")).startswith("wrong") else ""
    mark = "" if row[part]["how"] == "graph" else " e"
    return f"{row[part]['ms']:.3f}{mark}"


def ratio(ours: dict[str, Any] | None, peers: list[dict[str, Any]], part: str) -> str:
    """Time of the fastest peer over ours."""
    times = [peer[part]["ms"] for peer in peers if part in peer]
    if not times or not ours or part not in ours:
        return ""
    return f"{min(times) / ours[part]['ms']:.2f}"


def memory(row: dict[str, Any] | None, part: str) -> str:
    if not row or "peak_gib" not in row.get(part, {}):
        return ""
    return f"{row[part]['peak_gib']:.2f}"


def share(row: dict[str, Any] | None, part: str) -> str:
    """Forward: q, k, v, g, o and beta. Step: that and the states; the reverse scan's q, k, g, do and
    states; the chunk-local kernel's five inputs, both states and four gradients."""
    if row is None or part not in row:
        return ""
    dim = row["dim"]
    each = 10 * dim + 4 if part == "forward" else 36 * dim + 16 + 4 * dim * dim // 32
    moved = row["batch"] * row["tokens"] * row["heads"] * each
    return f"{moved / BYTES_PER_MS / row[part]['ms']:.0%}"


def times(rows: dict[str, dict[str, Any]], part: str) -> list[str]:
    """The table of one part: milliseconds of every engine that has it, then what follows."""
    found = [row["engine"] for by_engine in rows.values() for row in by_engine.values()]
    names = [
        name
        for name in dict.fromkeys([OURS, *found])
        if any(part in by_engine.get(name, {}) for by_engine in rows.values())
    ]
    peers = [name for name in names if name != OURS]
    head = ["case", *names, f"{PEER} / {OURS}", f"best peer / {OURS}", "roofline"]
    head += [f"GiB {name}" for name in names]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    for case, by_engine in rows.items():
        ours = by_engine.get(OURS)
        others = [by_engine[name] for name in peers if name in by_engine]
        cells = [case, *(cell(by_engine.get(name), part) for name in names)]
        cells += [ratio(ours, [row for row in others if row["engine"] == PEER], part)]
        cells += [ratio(ours, others, part), share(ours, part)]
        cells += [memory(by_engine.get(name), part) for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def speed(files: list[Path]) -> list[str]:
    loaded = [json.loads(path.read_text()) for path in files]
    rows: dict[str, dict[str, Any]] = {}
    for data in loaded:
        for row in data["rows"]:
            rows.setdefault(row["case"], {})[row["engine"]] = row
    lines = [
        f"Machine: {json.dumps(loaded[0]['machine'])}",
        "",
        "Milliseconds; e: by events around eager calls, otherwise graph replays. Roofline: the "
        "bytes that fused kernels must move (inputs, results, and for the step a bf16 state per "
        "64 tokens written twice and read twice), at 4.3 TB/s, over our time. GiB: peak of an "
        "eager call with its inputs. Gate: strong unless named.",
        "",
        "Forward",
        "",
        *times(rows, "forward"),
        "",
        "Forward and backward",
        "",
        *times(rows, "step"),
        "",
    ]
    every = [row for by_engine in rows.values() for row in by_engine.values()]
    routes = {row["engine"]: row["route"] for row in every if row.get("route")}
    lines += [f"- {engine}: {route}." for engine, route in routes.items()]
    lines += largest_differences(every)
    lines += [f"- {r['case']}, {r['engine']}: {r['skipped']}" for r in every if r.get("skipped")]
    return lines


def largest_differences(rows: list[dict[str, Any]]) -> list[str]:
    """Of results compared before the times, over all cases of an engine that were timed."""
    worst: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        checked = row.get("agreement", {})
        if row.get("skipped") or not checked.get("differences"):
            continue
        known = worst.setdefault((row["engine"], checked["beside"]), {})
        for name, value in checked["differences"].items():
            known[name] = max(known.get(name, 0.0), value)
    return [
        f"- {engine} beside {beside}, largest relative RMS differences: "
        + ", ".join(f"{name} {number(value)}" for name, value in found.items())
        for (engine, beside), found in worst.items()
    ]


def kernel_name(name: str) -> str:
    """Without return type, namespaces, parameters."""
    name = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", name.removeprefix("void "))
    name = re.sub(r"\((?:int|bool)\)", "", name)
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def stages(files: list[Path]) -> list[str]:
    lines = []
    for path in files:
        data = json.loads(path.read_text())
        lines += [f"Machine: {json.dumps(data['machine'])}", "", f"Case: {data['case']}", ""]
        lines += ["| engine | kernel | launches | ms | share |", "| --- | --- | --- | --- | --- |"]
        for engine, rows in data["engines"].items():
            total = sum(row["ms"] for row in rows)
            for row in rows:
                lines.append(
                    f"| {engine} | `{kernel_name(row['kernel'])}` | {row['launches']} | "
                    f"{row['ms']:.3f} | {row['ms'] / total:.0%} |"
                )
            lines.append(f"| {engine} | **all** | | **{total:.3f}** | |")
        lines.append("")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["speed", "precision", "stages"])
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    kinds = {"speed": speed, "precision": precision, "stages": stages}
    print("\n".join(kinds[args.kind](args.files)))


if __name__ == "__main__":
    main()

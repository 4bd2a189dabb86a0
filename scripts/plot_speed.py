#!/usr/bin/env python3
"""Draws docs/images/speed.svg from the H200 table of README.md (needs matplotlib).

scripts/plot_speed.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/images/speed.svg"


def rows(text: str) -> list[tuple[str, float, float, float, float]]:
    """Shape, forward, forward of FLA, forward + backward, that of FLA; milliseconds."""
    table = re.search(r"^\| ms \| forward .*?\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    if table is None:
        raise SystemExit("plot_speed: README.md has no table that begins with `| ms | forward`")
    out = []
    for line in table.group(1).splitlines():
        cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        out.append((cells[0], *(float(cells[i]) for i in (1, 2, 5, 6))))
    return out


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Text stays text, and the same numbers give the same bytes.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kda", "font.size": 9})
    data = rows((ROOT / "README.md").read_text())
    figure, axes = plt.subplots(1, 2, figsize=(9, 0.62 * len(data) + 0.9), sharey=True)
    for axis, first, title in ((axes[0], 1, "forward"), (axes[1], 3, "forward + backward")):
        for offset, column, name, colour in (
            (-0.19, first, "kda", "#1f6f8b"), (0.19, first + 1, "FLA 0.6.0", "#c9c9c9"),
        ):  # fmt: skip
            values = [row[column] for row in data]
            places = [i + offset for i in range(len(data))]
            bars = axis.barh(places, values, 0.36, label=name, color=colour)
            axis.bar_label(bars, labels=[f"{v:g}" for v in values], padding=2)
        axis.set_title(f"{title}, ms")
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(data)), [row[0] for row in data])
    axes[0].invert_yaxis()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, loc="lower left", ncols=2)
    figure.tight_layout()
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None})
    TARGET.write_text(re.sub(r"[ \t]+$", "", TARGET.read_text(), flags=re.MULTILINE))
    print(TARGET)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes the status table of docs/status.md from test results.

    scripts/status_table.py [--commit TEXT] [--device SUMMARY.json] [--out docs/status.md] RESULTS.xml ...
    scripts/status_table.py --summarise --machine NAME --commit ID --out SUMMARY.json RESULTS.xml ...

Results are JUnit files: `PROGRAM --gtest_output=xml:FILE` of GoogleTest programs and
`pytest --junitxml=FILE`. What a test measured is its property "max_difference" (or "loss").
`make status` runs the tests and this. Exit 1 when a row failed or measured more than its limit.

Machines that build and test this mostly have no GPU: the rows of DEVICE_ROWS come from the summary
of a run on one (the second form writes it), and name its machine and commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: the tests whose names match, and what their measure must stay below."""

    layer: str
    test: str
    pattern: str
    limit: float | None
    notes: str
    measure: str = "max_difference"


@dataclasses.dataclass(frozen=True)
class Result:
    """One test case of a results file."""

    name: str
    outcome: str  # passed, failed, skipped
    reason: str
    properties: dict[str, float]


# Names are "Suite.Case" of GoogleTest (parameters behind a slash) and "file::test[parameter]".
ROWS = [
    Row("L1", "token recurrence, all gradients", r"^(Ref/Gradient\.|Recurrent\.Golden)", 1e-4,
        "hand-written backward (and L2's) against central differences in double; golden numbers"),
    Row("L2", "chunked form equals L1", r"^(Ref/Forms\.|Chunk\.Golden)", 1e-4,
        "forward and backward in double, chunks of 1 to 64, every gate"),
    Row("L3", "fused forward, CPU, f32", r"^All/ChunkConformance\.Forward_\w+/cpu_f32_", 1e-4,
        "against L1 in double: shapes, layouts, packing, gates, chunk 16 to 128"),
    Row("L3", "fused forward, CPU, bf16 tensors", r"^All/ChunkConformance\.Forward_\w+/cpu_bf16_", None,
        "the same calls; one rounding to bf16 is 4e-3"),
    Row("L4", "fused backward, CPU, f32", r"^All/ChunkConformance\.Backward_\w+/cpu_f32_", 1e-3,
        "all gradients"),
    Row("L4", "fused backward, CPU, bf16 tensors", r"^All/ChunkConformance\.Backward_\w+/cpu_bf16_", None,
        "all gradients"),
    Row("L3/L4", "chunk in PyTorch", r"^test_chunk::", None,
        "the FLA-compatible call, f64, f32, bf16, f16, against an independent loop; gradcheck"),
    Row("L5", "gate formulas, reference", r"^Gate\.", 1e-4,
        "standard and safe: golden numbers, slopes against central differences"),
    Row("L5", "fused gate, CPU, f32", r"^All/GateConformance\.\w+/cpu_f32_", 1e-4,
        "forward, cumulative sum, dA_log, d_dt_bias, dg"),
    Row("L5", "gate in PyTorch", r"^test_gate::", None, "formulas and gradcheck"),
    Row("L6", "recurrent decode, CPU, f32",
        r"^All/(Recurrent|Pool)Conformance\.\w+/cpu_f32_(?!\w*bf16)", 1e-5,
        "token by token against L1, with pools of states"),
    Row("L6", "pools of bf16 states", r"^All/PoolConformance\.\w+/cpu_f32_\w*bf16", None,
        "each state rounded to bf16 when stored"),
    Row("L6", "recurrent decode in PyTorch", r"^test_recurrent::", None,
        "f64, f32, bf16; speculative decoding"),
    Row("L6", "decode of a model", r"^(K3)?Decode_", None,
        "steps and pieces equal the full forward; saved states"),
    Row("L7", "train overfit", r"^Overfit\.", 0.1, "two sentences learnt and reproduced; the loss", "loss"),
    Row("L7", "resume, accumulation, checkpoints", r"^(Resume|Accumulation|RunFolder|Crash|NonFinite)\.", None,
        "a stopped run gives the bytes of one that was not"),
    Row("L7", "trace and extract", r"^(Trace|Extract|Recorder|Quantities|Select|Stages)", None,
        "same bits as untraced; replayed node by node"),
    Row("L7", "viewer", r"^(View|TensorLens|Quantize|Http|Request|Array|Catalog|Expression|Reduce)", None,
        "endpoints, int8 forms, request guard"),
    Row("L7", "viewer: clients", r"^(test_tensorlens|test_random_requests)::", None,
        "the TensorLens client, random requests"),
    Row("L7", "viewer: page", r"^test_page::", None, "in headless Chromium"),
    Row("K3", "hybrid, MLA, experts", r"^(K3Arch_|GatedMla_|Moe_|Router_|Experts_|Situ_|Balance_)", 1e-4,
        "gradients against central differences in double"),
    Row("K3", "released checkpoints' form", r"^test_hf_checkpoints::", None,
        "logits against an independent forward in double"),
    Row("AttnRes", "mixer over depth", r"^AttnRes_", 1e-4,
        "golden numbers, gradients, two phases, block and full"),
    Row("notes", "formulas and worked numbers", r"^test_notes::", None,
        "57 formulas against automatic differentiation"),
    Row("learn", "reading path", r"^test_learn::", None, "every command of docs/learn is run"),
]  # fmt: skip

DEVICE_ROWS = [
    Row("L3", "fused forward, CUDA, f32", r"^All/ChunkConformance\.Forward_\w+/cuda_f32_", 1e-4,
        "against L1 in double, as on the CPU"),
    Row("L3", "fused forward, CUDA, bf16 and f16 tensors",
        r"^All/ChunkConformance\.Forward_\w+/cuda_b?f16_", None, "the same calls"),
    Row("L4", "fused backward, CUDA, f32", r"^All/ChunkConformance\.Backward_\w+/cuda_f32_", 1e-3,
        "all gradients"),
    Row("L4", "fused backward, CUDA, bf16 and f16 tensors",
        r"^All/ChunkConformance\.Backward_\w+/cuda_b?f16_", None, "all gradients"),
    Row("L3/L4", "stages, CUDA", r"^(All/Stage|SmallStage|All/HopperStage)\.", None,
        "each stage from the oracle's inputs"),
    Row("L3/L4", "kernels for Hopper", r"^(All/)?Hopper(Chunk|Scan|Segment|Standard|Path|Cluster)", None,
        "forward and backward against L1 in double, on the path asserted; same bits for any batch"),
    Row("L3/L4", "graphs, faults, large calls, CUDA", r"^(All/)?Cuda(Graph|Faults|Large|Chunk)", None,
        "twenty runs and a thousand launches under load bit for bit; a million tokens"),
    Row("L5", "fused gate, CUDA, f32", r"^All/GateConformance\.\w+/cuda_f32_", 1e-4,
        "forward, cumulative sum, dA_log, d_dt_bias, dg"),
    Row("L6", "recurrent decode, CUDA, f32",
        r"^All/(Recurrent|Pool)Conformance\.\w+/cuda_f32_(?!\w*bf16)", 1e-5,
        "token by token against L1, with pools of states"),
    Row("L3-L6", "invariances, CUDA", r"^All/(Invariants|LongMemory|Kept|GateOutputs|BetaPerValue)", None,
        "causality, batch, packing and pieces bit for bit; long memory; each output alone"),
    Row("L3-L6", "operator in PyTorch, CUDA", r"^(test_cuda|test_fla_bridge)::", None,
        "gradients, compile, graphs, autocast, FLA's own layer on this operator"),
    Row("K3", "model on the device", r"^(Types|Storage)/Device", None,
        "layers, experts, whole model, decoding against the host"),
    Row("L7", "training on the device", r"^Gpu\.", None, "resume bit for bit"),
]  # fmt: skip


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def results_of(path: Path) -> Iterable[Result]:
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        suite, name = case.get("classname", ""), case.get("name", "")
        # pytest's class is the module's dotted path
        full = (
            f"{suite.rpartition('.')[2]}::{name}"
            if case.get("status") is None
            else f"{suite}.{name}"
        )
        properties = {
            p.get("name", ""): value
            for p in case.iter("property")
            if (value := number(p.get("value", ""))) is not None
        }
        outcome, reason = "passed", ""
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif (skipped := case.find("skipped")) is not None or case.get("result") == "skipped":
            outcome = "skipped"
            reason = (skipped.get("message") or "") if skipped is not None else ""
        elif case.get("status") == "notrun":
            continue
        yield Result(full, outcome, reason, properties)


def cells(row: Row, results: list[Result]) -> tuple[list[str], bool]:
    """The cells of a row, and whether it is as it should be."""
    found = [result for result in results if re.search(row.pattern, result.name)]
    count = {o: sum(r.outcome == o for r in found) for o in ("passed", "failed", "skipped")}
    measured = [r.properties[row.measure] for r in found if row.measure in r.properties]
    # a NaN is worse than any number
    worst = max(measured, key=lambda value: (math.isnan(value), value), default=None)
    good = count["failed"] == 0
    if not found:
        status = "not run"
    elif count["failed"]:
        status = "FAILED"
    elif not count["passed"]:
        status = "skipped"
    elif worst is not None and row.limit is not None and not worst <= row.limit:
        status, good = "ABOVE LIMIT", False
    else:
        status = "PASSED"
    cases = ", ".join(f"{n} {outcome}" for outcome, n in count.items() if n) or "no results given"
    notes = f"{row.notes} ({cases})"
    reasons = {
        r.reason.strip().splitlines()[-1]
        for r in found
        if r.outcome == "skipped" and r.reason.strip()
    }
    if status == "skipped" and len(reasons) == 1:
        notes += f": {reasons.pop()}"
    return [
        row.layer,
        row.test,
        status,
        "" if worst is None else f"{worst:.1e}",
        ""
        if row.limit is None
        else f"{row.limit:.0e}".replace("e-0", "e-")
        if row.limit < 0.1
        else f"{row.limit:g}",
        notes.replace("|", "\\|"),
    ], good


HEAD = """# Status

Made by `make status` from test results; do not edit. {commit}

*max_diff* is the largest difference that the row's tests measured, relative to the largest value expected (absolute where that is below 1); for the overfitting row it is the loss. *atol* is the limit that the plan of the project sets; the tests' own limits are tighter (`tests/support/tolerance.cpp`). *skipped* and *not run* say what is missing; they are not successes.

{columns}"""

COLUMNS = """| Layer | Test | Status | max_diff | atol | Notes |
| --- | --- | --- | --- | --- | --- |
"""

DEVICE_HEAD = """
## On a GPU

Tests that were run on one {machine} at commit {commit} ({summary}); a row without results was not run there.

"""


def line(row_cells: list[str]) -> str:
    return "| " + " | ".join(row_cells) + " |\n"


def summarise(results: list[Result], machine: str, commit: str) -> tuple[str, bool]:
    """Rows of a run on a device, as JSON, and whether all are as they should be."""
    rows = {row.test: cells(row, results) for row in DEVICE_ROWS}
    text = json.dumps(
        {
            "machine": machine,
            "commit": commit,
            "rows": {test: row_cells for test, (row_cells, _) in rows.items()},
        },
        indent=1,
    )
    return text + "\n", all(good for _, good in rows.values())


def device_table(summary: Path) -> str:
    """The second table: what `summarise` wrote, in the order of DEVICE_ROWS."""
    given = json.loads(summary.read_text(encoding="utf-8"))
    known = {row.test for row in DEVICE_ROWS}
    if set(given["rows"]) != known:
        odd = ", ".join(sorted(set(given["rows"]) ^ known))
        raise ValueError(f"{summary}: expected the rows of DEVICE_ROWS, different are: {odd}")
    head = DEVICE_HEAD.format(
        machine=given["machine"], commit=given["commit"], summary=f"[results]({summary.name})"
    )
    return head + COLUMNS + "".join(line(given["rows"][row.test]) for row in DEVICE_ROWS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.xml")
    parser.add_argument("--commit", default="", help="sentence that says what was tested")
    parser.add_argument("--device", type=Path, help="summary of a run on a GPU, beside --out")
    parser.add_argument(
        "--summarise", action="store_true", help="write the summary of a run on a GPU"
    )
    parser.add_argument("--machine", default="", help="GPU of the run, for --summarise")
    parser.add_argument("--out", type=Path, help="default: standard output")
    arguments = parser.parse_args()
    if arguments.summarise and not (arguments.machine and arguments.commit):
        parser.error("--summarise: expected --machine and --commit")
    try:
        results = [result for path in arguments.results for result in results_of(path)]
        device = device_table(arguments.device) if arguments.device else ""
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        print(f"status_table.py: error: {error}", file=sys.stderr)
        return 2
    if arguments.summarise:
        text, good = summarise(results, arguments.machine, arguments.commit)
    else:
        rows = [cells(row, results) for row in ROWS]
        good = all(row_good for _, row_good in rows)
        head = HEAD.format(commit=arguments.commit, columns=COLUMNS).replace(". \n", ".\n")
        text = head + "".join(line(row_cells) for row_cells, _ in rows) + device
    if arguments.out is None:
        print(text, end="")
    else:
        arguments.out.write_text(text, encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

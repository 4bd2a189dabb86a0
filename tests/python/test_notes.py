"""docs/notes without LaTeX: formulas, worked numbers, measurements, references."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / "docs" / "notes"
sys.path.insert(0, str(NOTES))
sys.path.insert(0, str(NOTES / "plots"))

import check_formulas  # noqa: E402
import experiments  # noqa: E402
import worked  # noqa: E402

SOURCES = [NOTES / "notes.tex", *sorted((NOTES / "chapters").glob("*.tex"))]
TEXT = "".join(path.read_text(encoding="utf-8") for path in SOURCES)


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    return check_formulas.largest_differences()


def test_every_formula_agrees_with_its_check(differences: dict[str, float]) -> None:
    wrong = {label: v for label, v in differences.items() if not v <= check_formulas.LIMIT}
    assert not wrong


def test_marked_formulas_and_checks_are_the_same(differences: dict[str, float]) -> None:
    marked = re.findall(r"\\checked\{([^}]*)\}", TEXT)
    assert len(marked) == len(set(marked))
    assert set(marked) == set(differences)
    table = (NOTES / "data" / "checks.tex").read_text(encoding="utf-8")
    assert re.findall(r"\\eqref\{([^}]*)\}", table) == marked


def test_a_wrong_formula_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import kda_model

    def unscaled(x, c, do, D):
        dU, X, dS = original(x, c, do, D)
        return dU, X, dS - c.last.unsqueeze(1) * D + D  # the decay of the chunk left out

    original = kda_model.reverse_step
    monkeypatch.setattr("checks.operator_backward.reverse_step", unscaled)
    check = check_formulas.CHECKS["eq:scan-ds"]
    assert check() > 1e-3


def printed_numbers() -> list[tuple[str, str]]:
    return re.findall(r"\\val\{([^}]*)\}\{([^}]*)\}", TEXT)


def test_worked_numbers_are_what_comes_out() -> None:
    values = worked.worked_values()
    printed = printed_numbers()
    assert len(printed) > 200
    for key, digits in printed:
        places = len(digits.partition(".")[2])
        # "-.294613" stands for eight places: zeros at the end are not printed
        unit = 10.0 ** -(max(places, 8) if places > 3 else places)
        shown = float(digits)
        if places <= 3 and key.partition(".")[0] not in ("gate", "qb"):
            unit = 1e-8
        assert abs(values[key] - shown) <= 0.5001 * unit, (key, digits, values[key])


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("tests/ref/golden_test.cpp", ("o", "S", "dg", "dk", "dbeta", "gate", "bias")),
        ("tests/model/feed_forward_test.cpp", ("situ",)),
        ("tests/model/attn_res_test.cpp", ("mix.h", "mix.dw", "mix.dgamma", "mix.p.2")),
        ("tests/model/balance_test.cpp", ("qb.s", "qb.alpha", "qb.b")),
    ],
)
def test_worked_numbers_stand_in_the_cpp_tests(file: str, keys: tuple[str, ...]) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    numbers = {float(x) for x in re.findall(r"-?\d*\.\d+|-?\d+", source)}
    wanted = [
        (key, float(digits))
        for key, digits in printed_numbers()
        if any(key == k or key.startswith(k + ".") for k in keys)
    ]
    assert len(wanted) >= len(keys)
    missing = [(key, value) for key, value in wanted if value not in numbers]
    assert not missing


def test_the_operator_gives_the_worked_numbers() -> None:
    import kda

    values = worked.worked_values()

    def column(name: str, *shape: int) -> torch.Tensor:
        picked = [v for key, v in values.items() if key.partition(".")[0] == name]
        return torch.tensor(picked, dtype=torch.float64).reshape(shape)

    inputs = [column(n, 1, 3, 1, 2).requires_grad_() for n in ("q", "k", "v", "g")]
    inputs.append(column("beta", 1, 3, 1).requires_grad_())
    o, state = kda.chunk_kda(*inputs, output_final_state=True)
    (o * column("do", 1, 3, 1, 2)).sum().backward()
    assert state is not None
    pairs = {"o": o, "S": state}
    names = ("dq", "dk", "dv", "dg", "dbeta")
    pairs |= {name: x.grad for name, x in zip(names, inputs, strict=True)}
    for name, given in pairs.items():
        torch.testing.assert_close(given, column(name, *given.shape), rtol=0, atol=1e-12)


def stored(name: str) -> list[dict[str, float]]:
    with (NOTES / "data" / f"{name}.csv").open(encoding="utf-8") as file:
        return [{key: float(v) for key, v in row.items()} for row in csv.DictReader(file)]


def assert_alike(given: dict[str, float], expected: dict[str, float], factor: float) -> None:
    assert given.keys() == expected.keys()
    for key, value in expected.items():
        if math.isnan(value):
            assert math.isnan(given[key]), key
        else:  # another processor may add in another order
            assert value / factor <= given[key] <= value * factor, (key, value, given[key])


@pytest.mark.parametrize("name", ["frames", "roundings", "decay_gradient", "operator"])
def test_measurements_come_out_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "DECAYS", [0.125, 8.0, 1.0])
    by_decay = {row["decay"]: row for row in stored(name)}
    for row in experiments.EXPERIMENTS[name]():
        assert_alike(row, by_decay[row["decay"]], 2.0)


def test_measurements_of_the_inverse_come_out_alike() -> None:
    for given, expected in zip(experiments.inverse(), stored("inverse"), strict=True):
        chosen = ("beta", "substitution_f32", "largest_entry")
        assert_alike({k: given[k] for k in chosen}, {k: expected[k] for k in chosen}, 3.0)
        assert (given["series_f32"] > 1) == (expected["series_f32"] > 1)


def test_plots_name_columns_that_exist() -> None:
    plots = re.findall(r"x=(\w+), y=(\w+)\] \{data/(\w+)\.csv\}", TEXT)
    assert len(plots) > 20
    for x, y, name in plots:
        assert {x, y} <= stored(name)[0].keys(), (name, x, y)
    assert {name for *_, name in plots} == set(experiments.EXPERIMENTS)


def test_references_lead_somewhere() -> None:
    labels = re.findall(r"\\(?:label|checked)\{([^}]*)\}", TEXT)
    assert len(labels) == len(set(labels))
    used = set(re.findall(r"\\(?:eq)?ref\{([^}]*)\}", TEXT))
    assert used <= set(labels)
    bibliography = (NOTES / "refs.bib").read_text(encoding="utf-8")
    known = set(re.findall(r"^@\w+\{(\w+),", bibliography, re.MULTILINE))
    cited = {
        key
        for keys in re.findall(r"\\cite(?:\[[^]]*\])?\{([^}]*)\}", TEXT)
        for key in keys.split(",")
    }
    assert cited == known


def test_files_that_the_notes_name_exist() -> None:
    for name in re.findall(r"\\file\{([^}]*)\}", TEXT):
        path = name.replace(r"\_", "_")
        assert (ROOT / path).exists() or (ROOT / "tests" / "model" / path).exists(), path


def test_without_latex_the_packages_are_named(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "env"):
        found = next(d for d in os.environ["PATH"].split(":") if (Path(d) / tool).exists())
        (tmp_path / tool).symlink_to(Path(found) / tool)
    result = subprocess.run(
        [str(ROOT / "scripts" / "build_notes.sh"), "build"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "latexmk texlive-latex-recommended texlive-pictures lmodern" in result.stderr

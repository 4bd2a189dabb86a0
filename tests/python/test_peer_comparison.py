"""bench/peers/cuda without a GPU and without peers: the reference, the errors, the flags."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle import Call, definition

FOLDER = Path(__file__).resolve().parents[2] / "bench/peers/cuda"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in (
        "agreement", "common", "cudnn_engine", "precision", "tables", "speed", "fla_tuning"
    ):  # fmt: skip
        monkeypatch.delitem(sys.modules, name, raising=False)


def small_inputs(sequences: int = 1) -> Any:
    """Nine tokens, two heads, D = 4, on the CPU."""
    import common

    random = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    return common.Inputs(
        *(normal(1, 9, 2, 4).bfloat16() for _ in range(4)),
        beta=normal(1, 9, 2).bfloat16(),
        a_log=normal(2),
        dt_bias=normal(8),
        state=normal(sequences, 2, 4, 4),
        d_o=normal(1, 9, 2, 4).bfloat16(),
        d_state=normal(sequences, 2, 4, 4),
        cu_seqlens=None,
    )


@pytest.mark.parametrize("bounded", [True, False])
def test_reference_equals_the_definition(bounded: bool) -> None:
    import common
    import precision

    case = common.Case(1, 9, 2, dim=4, bounded=bounded)
    x = small_inputs()
    got = precision.reference(x, case)
    options = {
        "A_log": x.a_log,
        "dt_bias": x.dt_bias,
        "initial_state": x.state,
        "use_gate_in_kernel": True,
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "lower_bound": common.LOWER_BOUND if bounded else None,
    }
    call = Call(x.q.double(), x.k.double(), x.v.double(), x.g.double(), x.beta.double(), options)
    leaf = call.recorded()
    wanted = definition(leaf)
    gradients = torch.autograd.grad(
        wanted, list(leaf.differentiable().values()), [x.d_o.double(), x.d_state.double()]
    )
    assert len(got) == len(precision.QUANTITIES)
    for one, other in zip(got, (*wanted, *gradients), strict=True):
        assert torch.allclose(one, other.double(), atol=1e-7)


def test_errors() -> None:
    import precision

    wanted = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = precision.errors(torch.tensor([3.0, 5.0]), wanted)
    assert found == {"max": 1.0, "mean": 0.5, "ratio": pytest.approx(0.2)}
    zero = torch.zeros(2, dtype=torch.float64)
    assert precision.errors(torch.zeros(2), zero)["ratio"] == 0.0
    assert precision.errors(torch.ones(2), zero)["ratio"] == math.inf
    assert math.isnan(precision.errors(torch.tensor([math.nan, 0.0]), wanted)["ratio"])


@pytest.mark.parametrize(
    ("quantity", "ours", "peer", "flag"),
    [
        ("o", 4e-3, 4e-3, ""),
        ("o", 5.1e-3, 5.1e-3, "**over 0.005**"),
        ("dq", 3e-3, 2e-3, "**1.50 x**"),
        ("dq", 2.4e-3, 2e-3, ""),
        ("dg", 9e-5, 1e-6, ""),
        ("dA_log", 0.5, None, ""),
        ("dk", math.nan, 1.0, "**not finite**"),
        ("dk", 1e-3, math.nan, ""),
    ],
)
def test_flags(quantity: str, ours: float, peer: float | None, flag: str) -> None:
    import tables

    assert tables.verdict(quantity, ours, peer) == flag


def test_packed_recurrence_equals_its_sequences() -> None:
    import agreement
    import common
    import precision

    x = small_inputs(sequences=2)
    got = agreement.recurrence(x, common.Case(1, 9, 2, dim=4, lengths=(4, 5)))
    first = dataclasses.replace(
        x,
        **{name: getattr(x, name)[:, :4] for name in ("q", "k", "v", "g", "beta", "d_o")},
        **{name: getattr(x, name)[:1] for name in ("state", "d_state")},
    )
    wanted = precision.reference(first, common.Case(1, 4, 2, dim=4))
    named = dict(zip(precision.QUANTITIES, zip(got, wanted, strict=True), strict=True))
    for name in ("o", "dq", "dk", "dv", "dg", "dbeta"):
        assert torch.equal(named[name][0][:, :4], named[name][1])
    for name in ("final state", "dh0"):
        assert torch.equal(named[name][0][:1], named[name][1])
    whole = precision.reference(
        dataclasses.replace(x, state=x.state[:1], d_state=x.d_state[1:]),
        common.Case(1, 9, 2, dim=4),
    )
    assert named["dA_log"][0].shape == whole[7].shape
    assert not torch.allclose(named["o"][0], whole[0])  # the second starts anew


def test_agreement_finds_what_is_wrong() -> None:
    import agreement
    import precision

    wanted = [torch.ones(3, dtype=torch.float64) for _ in precision.QUANTITIES]
    got = [t.clone() for t in wanted]
    assert agreement.complaint(agreement.differences(got, wanted)) == ""
    assert agreement.complaint(agreement.differences(got[:2], wanted)) == ""  # inference only
    got[2] *= 1.02
    got[5] *= 1.02  # gradients of gates may differ by more
    got[9][1] = math.nan
    found = agreement.complaint(agreement.differences(got, wanted))
    assert found == "wrong: dq 2.0e-02, dh0 nan"


def test_cases_cover_every_gate() -> None:
    import common
    import speed

    assert len({case.name for case in speed.CASES}) == len(speed.CASES)
    for heads in (64, 96):
        found = {case.gate for case in speed.CASES if (case.tokens, case.heads) == (8192, heads)}
        assert found == set(common.GATES)


def test_states_by_value_keep_their_values() -> None:
    import common

    x = small_inputs()
    moved = common.states_by_value(x)
    assert torch.equal(moved.state, x.state)
    assert torch.equal(moved.d_state, x.d_state)
    assert moved.state.mT.is_contiguous()


def test_tables(tmp_path: Path) -> None:
    import tables

    def row(engine: str, forward: float, step: float | None) -> dict:
        made = {"case": "one", "engine": engine, "batch": 1, "tokens": 8192, "heads": 96}
        made |= {"dim": 128, "forward": {"ms": forward, "how": "graph", "peak_gib": 1.0}}
        if step is not None:
            made["step"] = {"ms": step, "how": "events", "peak_gib": 2.0}
        return made

    rows = [row("kda", 1.0, 4.0), row("FLA", 2.0, 10.0), row("FlashKDA", 1.5, None)]
    agreed = {"beside": "kda", "differences": {"o": 1e-3}, "wrong": ""}
    rows.append(row("cudnn", 3.0, 9.0) | {"route": "a route", "agreement": agreed})
    rows.append({"case": "two", "engine": "FlashKDA", "skipped": "D = 128 only, given 64"})
    rows.append({"case": "two", "engine": "cudnn", "skipped": "wrong: dq nan"})
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"machine": {"gpu": "none"}, "rows": rows}))
    text = "\n".join(tables.speed([path]))
    forward = "| one | 1.000 | 2.000 | 1.500 | 3.000 | 2.00 | 1.50 | 23% | 1.00 |"
    assert forward in text
    assert "| one | 4.000 e | 10.000 e | 9.000 e | 2.50 | 2.25 |" in text
    assert "| two |  |  |  | wrong |  |  |  |" in text
    assert "- two, FlashKDA: D = 128 only, given 64" in text
    assert "- cudnn: a route." in text
    assert "- cudnn beside kda, largest relative RMS differences: o 1.0e-03" in text

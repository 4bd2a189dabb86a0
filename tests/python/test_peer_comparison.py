"""bench/peers/cuda without a GPU and without peers: the reference, the errors, the flags."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from oracle import Call, definition

FOLDER = Path(__file__).resolve().parents[2] / "bench/peers/cuda"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("common", "precision", "tables", "speed", "fla_tuning"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("bounded", [True, False])
def test_reference_equals_the_definition(bounded: bool) -> None:
    import common
    import precision

    case = common.Case(1, 9, 2, dim=4, bounded=bounded)
    random = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    x = common.Inputs(
        *(normal(1, 9, 2, 4).bfloat16() for _ in range(4)),
        beta=normal(1, 9, 2).bfloat16(),
        a_log=normal(2),
        dt_bias=normal(8),
        state=normal(1, 2, 4, 4),
        d_o=normal(1, 9, 2, 4).bfloat16(),
        d_state=normal(1, 2, 4, 4),
        cu_seqlens=None,
    )
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


def test_tables(tmp_path: Path) -> None:
    import tables

    def row(engine: str, forward: float, step: float | None) -> dict:
        made = {"case": "one", "engine": engine, "batch": 1, "tokens": 8192, "heads": 96}
        made |= {"dim": 128, "forward": {"ms": forward, "how": "graph"}}
        if step is not None:
            made["step"] = {"ms": step, "how": "events", "peak_gib": 2.0}
        return made

    rows = [row("kda", 1.0, 4.0), row("FLA", 2.0, 10.0), row("FlashKDA", 1.5, None)]
    rows.append({"case": "two", "engine": "FlashKDA", "skipped": "D = 128 only, given 64"})
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"machine": {"gpu": "none"}, "rows": rows}))
    text = "\n".join(tables.speed([path]))
    assert "| one | 1.000 | 2.000 | 1.500 | 2.00 | 23% | 4.000 e | 10.000 e | 2.50 |" in text
    assert "- two, FlashKDA: D = 128 only, given 64" in text

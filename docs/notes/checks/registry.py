"""The list of checks. Each belongs to a formula of the notes, by the label of its equation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

#: label of the equation -> largest difference, relative to the largest value compared
CHECKS: dict[str, Callable[[], float]] = {}

#: what a check may differ by: sums of a few thousand products in float64
LIMIT = 1e-10


def formula(label: str) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Registers a function that computes the largest difference of one formula."""

    def register(check: Callable[[], float]) -> Callable[[], float]:
        if label in CHECKS:
            raise ValueError(f"{label} is checked twice")
        CHECKS[label] = check
        return check

    return register


def difference(given: Tensor, expected: Tensor) -> float:
    """max |given - expected| / max |expected|; shapes must agree and something must be compared."""
    if given.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(given.shape)}, {tuple(expected.shape)}")
    scale = float(expected.detach().abs().max())
    if scale == 0:
        raise ValueError("nothing to compare: only zeros are expected")
    return float((given.detach() - expected.detach()).abs().max()) / scale


def worst(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> float:
    return max(difference(given, expected) for given, expected in pairs.values())


class Random:
    """Normal numbers in float64, the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def leaf(self, *shape: int) -> Tensor:
        return self.normal(*shape).requires_grad_()


def gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [
        g if g is not None else torch.zeros_like(x)
        for g, x in zip(
            torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True),
            inputs,
            strict=True,
        )
    ]

"""Settings shared by the Python tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis
import pytest
import torch

import oracle

# The same examples in every run: a test that fails once fails always. Speed of a shared machine
# says nothing about the code, so there is no deadline.
hypothesis.settings.register_profile(
    "kda",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("kda")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def record_largest_difference(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """What a test's comparisons found, for the status table."""
    oracle.differences.clear()
    yield
    if oracle.differences:
        record_property("max_difference", f"{max(oracle.differences):.3g}")

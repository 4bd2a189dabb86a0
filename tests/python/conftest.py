"""Settings shared by the Python tests."""

from __future__ import annotations

import hypothesis
import torch

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

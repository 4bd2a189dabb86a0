"""A run's config.json as the flat table that dashboards and reports show."""

from __future__ import annotations

from typing import Any

#: Of the file, not of the run.
_LEFT_OUT = {"format", "version"}


def flat_config(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"lr": 1}} as {"train.lr": 1}; lists become text."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in _LEFT_OUT:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat.update(flat_config(value, f"{name}."))
        elif isinstance(value, list):
            flat[name] = ", ".join(str(item) for item in value)
        else:
            flat[name] = value
    return flat

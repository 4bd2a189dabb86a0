"""Routes ``fla.ops.kda`` of flash-linear-attention to this package, and undoes it.

import kda.integrations.fla as bridge

bridge.patch()          # models built on fla now run on kda
bridge.unpatch()        # and on fla's own functions again

with bridge.patched():  # for one block
    ...
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import kda

#: where flash-linear-attention defines what is routed
_HOME = {
    "chunk_kda": "fla.ops.kda.chunk",
    "fused_recurrent_kda": "fla.ops.kda.fused_recurrent",
    "fused_recurrent_kda_fwd": "fla.ops.kda.fused_recurrent",
    "fused_kda_gate": "fla.ops.kda.gate",
    "kda_gate_chunk_cumsum": "fla.ops.kda.gate",
}
#: what every release with KDA has
_REQUIRED = ("chunk_kda", "fused_recurrent_kda", "fused_kda_gate")
# Modules of fla.ops that hand the functions on. The others call them as stages of fla's own
# kernels, which keep their own.
_PUBLIC = {"fla.ops", "fla.ops.kda", *_HOME.values()}

#: name: (theirs, ours), while patched
_routes: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
#: modules outside fla that the caller named
_extra: list[ModuleType] = []


def patch(modules: Iterable[ModuleType] = ()) -> tuple[str, ...]:
    """Makes ``chunk_kda``, ``fused_recurrent_kda``, ``fused_recurrent_kda_fwd``, ``fused_kda_gate``
    and ``kda_gate_chunk_cumsum`` of flash-linear-attention those of this package.

    They change in ``fla.ops``, ``fla.ops.kda``, the modules that define them, and every loaded
    module of fla outside ``fla.ops`` (layers, models) that holds them; modules loaded later import
    the new ones. Callers pass the same arguments; those that this package refuses (docs/python.md)
    raise, nothing falls back to fla. A second call only adds ``modules``.

    Args:
        modules: other modules that did ``from fla.ops.kda import ...`` before this call.

    Returns:
        The names that are routed.

    Raises:
        ImportError: flash-linear-attention is missing, or has no KDA.
    """
    given = list(modules)
    if not _routes:
        _routes.update(_find())
    _extra.extend(module for module in given if module not in _extra)
    _replace({id(theirs): ours for theirs, ours in _routes.values()})
    return tuple(_routes)


def unpatch() -> None:
    """Undoes :func:`patch`, also in modules that were loaded meanwhile. No effect without one."""
    _replace({id(ours): theirs for theirs, ours in _routes.values()})
    _routes.clear()
    _extra.clear()


def is_patched() -> bool:
    """Whether :func:`patch` is in effect."""
    return bool(_routes)


@contextlib.contextmanager
def patched(modules: Iterable[ModuleType] = ()) -> Iterator[tuple[str, ...]]:
    """:func:`patch` for one block; leaves a patch that was in effect before as it was."""
    before = is_patched()
    try:
        yield patch(modules)
    finally:
        if not before:
            unpatch()


def _find() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    try:
        importlib.import_module("fla.ops.kda")
    except ImportError as error:
        missing = error.name or ""
        if missing == "fla":
            raise ImportError(
                "kda.integrations.fla: flash-linear-attention is not installed; there is nothing "
                "to patch (pip install flash-linear-attention)",
                name="fla",
            ) from error
        if missing.startswith("fla."):
            raise ImportError(
                "kda.integrations.fla: the installed flash-linear-attention has no fla.ops.kda; "
                "install a release with Kimi Delta Attention",
                name=missing,
            ) from error
        raise
    routes = {}
    for name, home in _HOME.items():
        try:
            theirs = getattr(importlib.import_module(home), name, None)
        except ModuleNotFoundError as error:
            if error.name != home:
                raise
            theirs = None
        if theirs is not None:
            routes[name] = (theirs, getattr(kda, name))
        elif name in _REQUIRED:
            raise ImportError(
                f"kda.integrations.fla: the installed flash-linear-attention has no {home}.{name}",
                name=home,
            )
    return routes


def _places() -> list[ModuleType]:
    loaded = list(sys.modules.items())
    return [
        module
        for name, module in loaded
        if isinstance(module, ModuleType)
        and (name == "fla" or name.startswith("fla."))
        and (name in _PUBLIC or not name.startswith("fla.ops."))
    ] + _extra


def _replace(instead: dict[int, Callable[..., Any]]) -> None:
    for module in _places():
        for attribute, value in list(vars(module).items()):
            if id(value) in instead:
                setattr(module, attribute, instead[id(value)])

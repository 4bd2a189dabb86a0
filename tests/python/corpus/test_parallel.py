"""The ordered parallel map: order, errors, and no waiting for work that nobody wants."""

from __future__ import annotations

import os
import time

import pytest

from kda.corpus.errors import CorpusError
from kda.corpus.parallel import bounded_map


def _square(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return number * number


def _fail_or_sleep(number: int) -> int:
    if number == 0:
        raise CorpusError("item 0 is bad")
    time.sleep(3600)
    return number


def _die(number: int) -> int:
    os._exit(9)


@pytest.mark.parametrize("jobs", [1, 3])
def test_order_is_kept(jobs: int) -> None:
    assert list(bounded_map(_square, range(20), jobs)) == [i * i for i in range(20)]


def test_items_are_read_lazily() -> None:
    taken: list[int] = []

    def items() -> object:
        for number in range(1000):
            taken.append(number)
            yield number

    results = bounded_map(_square, items(), 2)  # type: ignore[arg-type]
    assert next(results) == 0
    assert len(taken) < 20
    results.close()  # type: ignore[attr-defined]


def test_error_stops_the_other_workers() -> None:
    began = time.monotonic()
    with pytest.raises(CorpusError, match="item 0 is bad"):
        list(bounded_map(_fail_or_sleep, range(4), 2))
    assert time.monotonic() - began < 1800


def test_dead_worker_is_a_clear_error() -> None:
    with pytest.raises(CorpusError, match="a worker process died"):
        list(bounded_map(_die, range(4), 2))

"""Ordered parallel map with a bounded number of items in flight."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from kda.corpus.errors import CorpusError

Item = TypeVar("Item")
Result = TypeVar("Result")


def _leave_signals_to_parent() -> None:
    # Ctrl-C reaches the whole process group; only the parent should speak.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(pool: ProcessPoolExecutor) -> None:
    # Python 3.14 has terminate_workers() for this. shutdown() forgets the processes.
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def bounded_map(
    function: Callable[[Item], Result], items: Iterable[Item], jobs: int
) -> Iterator[Result]:
    """Results in the order of ``items``, so that the output does not depend on ``jobs``."""
    if jobs <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ProcessPoolExecutor(max_workers=jobs, initializer=_leave_signals_to_parent) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise CorpusError("a worker process died (out of memory?); try --jobs 1") from error
        except BaseException:  # an interrupt, or an item that failed: do not wait for the others
            _stop(pool)
            raise

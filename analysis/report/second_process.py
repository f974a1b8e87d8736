"""Work in a second process, which shares the memory of this one: a core for the figures.

Figures are half of a report's time and need none of what is computed meanwhile. A fork has runs and
fits already, where a new interpreter would take a second to import and read them.
"""

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_second_process(work: Callable[[], T]) -> Callable[[], T]:
    """Start work beside this process; return what waits for its result.

    The result must pickle, and the work may write files alone. Where a fork is not safe (threads of
    Python, no Linux), there is one core, or the other process fails, the work is done here, once
    the result is asked for.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if sys.platform != "linux" or cores < 2 or threading.active_count() > 1:
        return work
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of any thread; those of the linear algebra wait, and survive a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _work_and_exit(work, reading, writing)
    os.close(writing)

    def result() -> T:
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(pid, 0)
        if status != 0:
            return work()
        value: T = pickle.loads(content)
        return value

    return result


def _work_and_exit(work: Callable[[], object], reading: int, writing: int) -> None:
    """Do the work in the forked process and end it, whatever happens."""
    status = 1
    try:
        os.close(reading)
        content = pickle.dumps(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        status = 0
    finally:
        os._exit(status)  # nothing of the first process may be closed or printed twice

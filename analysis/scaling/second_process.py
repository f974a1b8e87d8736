"""Tasks shared with a forked second process: fits of curves, figures.

Curves do not need each other, and figures none of what is computed meanwhile. A fork has the runs
already, where a new interpreter would take a second to import and read them.
"""

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")

_NUMBER_BYTES = 4
_MOST_TASKS = 1000
"""Of which the numbers fit into a pipe everywhere."""


def in_second_process(tasks: Sequence[Callable[[], T]]) -> Callable[[], list[T]]:
    """Start tasks beside this process; return what does the rest of them and gives all results.

    Whoever is free takes the next task, this process once the results are asked for. Results must
    pickle, and tasks may write files alone. Where a fork is not safe (threads of Python, no Linux),
    no core is free beside this process and those at work already, or the other process fails, the
    work is done here.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    free = cores - 1 - len(multiprocessing.active_children())
    safe = sys.platform == "linux" and threading.active_count() == 1
    if not safe or free < 1 or not 1 < len(tasks) <= _MOST_TASKS:
        return lambda: [task() for task in tasks]
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    waiting = _numbers_to_take(len(tasks))
    # A daemon: an error here must not wait for results that nobody takes.
    process = context.Process(target=_send, args=(tasks, waiting, sending), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of any thread; those of the linear algebra wait, and survive a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sending.close()

    def results() -> list[T]:
        done = {i: tasks[i]() for i in _taken(waiting)}
        os.close(waiting)
        with receiving, suppress(EOFError):
            done |= receiving.recv()
        process.join()
        return [done[i] if i in done else task() for i, task in enumerate(tasks)]

    return results


def _numbers_to_take(n: int) -> int:
    """Return the end of a pipe that holds 0..n-1: whoever reads a number has that task."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(i.to_bytes(_NUMBER_BYTES, "big") for i in range(n)))
    os.close(writing)
    return reading


def _taken(waiting: int) -> Iterator[int]:
    """Yield the numbers of tasks that nobody else has taken."""
    while number := os.read(waiting, _NUMBER_BYTES):
        yield int.from_bytes(number, "big")


def _send(tasks: Sequence[Callable[[], T]], waiting: int, sending: Connection) -> None:
    """Send the results by number; a task that fails is missing, and its error is raised here."""
    gc.disable()  # looking through what the fork inherited would copy its pages
    done = {}
    with sending, suppress(Exception):
        for i in _taken(waiting):
            with suppress(Exception):
                done[i] = tasks[i]()
        sending.send(done)

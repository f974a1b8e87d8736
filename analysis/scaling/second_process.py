"""Work in a second process, which shares the memory of this one: a core for curves and figures.

Curves do not need each other, and figures none of what is computed meanwhile. A fork has the runs
already, where a new interpreter would take a second to import and read them.
"""

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
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
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    # A daemon: an error here must not wait for a result that nobody takes.
    process = context.Process(target=_send, args=(work, sending), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of any thread; those of the linear algebra wait, and survive a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sending.close()

    def result() -> T:
        try:
            value: T = receiving.recv()
        except EOFError:
            return work()
        finally:
            process.join()
        return value

    return result


def _send(work: Callable[[], object], sending: Connection) -> None:
    """Send the result; without one the pipe closes, and the error is raised where it is redone."""
    gc.disable()  # looking through what the fork inherited would copy its pages
    with sending, suppress(Exception):
        sending.send(work())

"""Pool of encoder processes: batches in, encoded batches out in the same order.

One thread per process hands it a batch and waits for the answer. A process ends when the other end
of its pipe is closed, so it also ends when this process is killed.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Generic, TypeAlias, TypeVar

from workloads.data.preparation.encoder import EncodedBatch, Encoder, EncoderSettings
from workloads.data.readers.problems import DataError

T = TypeVar("T")

_Worker: TypeAlias = tuple[SpawnProcess, Connection]
_CONTEXT = multiprocessing.get_context("spawn")
"""A fork would copy this process's threads half, and its ends of other pipes."""
_AHEAD = 2
"""Batches per process that are read before the first of them is written: bounds memory."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class EncoderPool(Generic[T]):
    """Encodes batches on several cores; a single batch here, without a process."""

    def __init__(self, settings: EncoderSettings, *, workers: int | None = None) -> None:
        """Start nothing yet; `workers` defaults to the cores this process may use."""
        self._settings, self._workers = settings, workers or usable_cores()
        self._local = threading.local()
        self._started: list[_Worker] = []

    def encode(self, batches: Iterator[tuple[T, list[str]]]) -> Iterator[tuple[T, EncodedBatch]]:
        """Yield each batch's label and what its texts became, in order."""
        first = list(islice(batches, 2))
        if len(first) < 2:
            for label, texts in first:
                yield label, Encoder(self._settings).encode(texts)
            return
        waiting: deque[tuple[T, Future[EncodedBatch]]] = deque()
        with ThreadPoolExecutor(self._workers) as threads:
            try:
                for label, texts in chain(first, batches):
                    waiting.append((label, threads.submit(self._encode, texts)))
                    if len(waiting) > _AHEAD * self._workers:
                        label, encoded = waiting.popleft()
                        yield label, encoded.result()
                while waiting:
                    label, encoded = waiting.popleft()
                    yield label, encoded.result()
            finally:
                for _, encoded in waiting:
                    encoded.cancel()
                self._end()

    def _encode(self, texts: list[str]) -> EncodedBatch:
        if not hasattr(self._local, "worker"):
            self._local.worker = self._start()
        process, pipe = self._local.worker
        try:
            pipe.send(texts)
            answer = pipe.recv()
        except (EOFError, ConnectionError) as error:
            process.join()
            raise DataError(
                [
                    f"an encoder process ended with exit code {process.exitcode}; if memory ran "
                    "out, use fewer with --workers"
                ]
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        encoded: EncodedBatch = answer
        return encoded

    def _start(self) -> _Worker:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(theirs, self._settings), daemon=True)
        process.start()
        theirs.close()
        self._started.append((process, ours))
        return process, ours

    def _end(self) -> None:
        for process, pipe in self._started:
            pipe.close()
            process.join()
        self._started.clear()


def _serve(pipe: Connection, settings: EncoderSettings) -> None:
    """Encode what comes in until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads
    # One thread each: the processes are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Encoder(settings)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            texts = pipe.recv()
            answer: EncodedBatch | Exception
            try:
                answer = encoder.encode(texts)
            except Exception as error:
                answer = error
            pipe.send(answer)

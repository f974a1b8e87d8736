"""Pool of encoder processes: batches in, encoded batches out in the same order.

One thread per process hands it a batch and waits for the answer. A process ends with its standard
input, so it also ends when this process is killed.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Generic, TypeVar

import workloads
from workloads.data.preparation.encoder import EncodedBatch, Encoder, EncoderSettings
from workloads.data.readers.problems import DataError

T = TypeVar("T")

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
        self._started: list[subprocess.Popen[bytes]] = []

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
        if not hasattr(self._local, "process"):
            self._local.process = self._start()
        process: subprocess.Popen[bytes] = self._local.process
        assert process.stdin is not None, "both ends are pipes"
        assert process.stdout is not None, "both ends are pipes"
        try:
            pickle.dump(texts, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise DataError(
                [
                    f"an encoder process ended with exit code {process.wait()}; if memory ran out, "
                    "use fewer with --workers"
                ]
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        encoded: EncodedBatch = answer
        return encoded

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(workloads.__path__[0]).parent)
        known = os.environ.get("PYTHONPATH")
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": f"{root}{os.pathsep}{known}" if known else root,
                # One thread each: the processes are the parallelism.
                "TOKENIZERS_PARALLELISM": "false",
                "OMP_NUM_THREADS": "1",
            },
        )
        self._started.append(process)
        assert process.stdin is not None, "it is a pipe"
        pickle.dump(self._settings, process.stdin)
        return process

    def _end(self) -> None:
        for process in self._started:
            for stream in (process.stdin, process.stdout):
                assert stream is not None, "both ends are pipes"
                with contextlib.suppress(BrokenPipeError):  # it ended before it read everything
                    stream.close()
            process.wait()
        self._started.clear()


def main() -> None:
    """Encode what comes in until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    encoder = Encoder(pickle.load(incoming))
    while True:
        try:
            texts = pickle.load(incoming)
        except EOFError:
            return
        try:
            answer: EncodedBatch | Exception = encoder.encode(texts)
        except Exception as error:
            answer = error
        try:
            pickle.dump(answer, outgoing)
            outgoing.flush()
        except BrokenPipeError:
            os._exit(1)


if __name__ == "__main__":
    main()

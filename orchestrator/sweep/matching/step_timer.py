"""Timer of optimizer steps: a `workloads.training.step.step_time` process."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from orchestrator.records.code_snapshot import with_code
from orchestrator.records.errors import ExperimentError

COMMAND = (sys.executable, "-P", "-m", "workloads.training.step.step_time")
ANSWER_S = 900.0
"""A measurement takes seconds, and minutes where a model is built that fills the machine."""
END_S = 5.0
"""How long the process may take to end after its input has ended."""


class StepTimeError(ExperimentError):
    """A step time could not be measured or met."""

    def __init__(self, message: str, fix: str = "") -> None:
        """Say what is wrong and what to do."""
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class StepTimer:
    """One process for all measurements of a file: importing torch takes longer than most."""

    def __init__(self, command: Sequence[str] = COMMAND, *, answer_s: float = ANSWER_S) -> None:
        """Start nothing yet.

        Args:
            command: What reads requests and writes answers.
            answer_s: Seconds after which no answer is expected any more.
        """
        self._command = command
        self._answer_s = answer_s
        self._process: subprocess.Popen[str] | None = None
        self._complaints: IO[bytes] | None = None

    def __enter__(self) -> "StepTimer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def time(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request (`workloads/training/step/step_time.py` describes both).

        Raises:
            StepTimeError: If the process cannot measure it, ends, or does not answer.
        """
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self._answer_s)
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if line is None:
            self.close(at_once=True)
            raise StepTimeError(
                f"step times could not be measured: no answer within {self._answer_s:.0f} s",
                "make the models smaller, or match training_flops",
            )
        if not line:
            raise StepTimeError(f"step times could not be measured: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise StepTimeError(
                f"step times could not be measured: {answer['error']}", answer.get("fix", "")
            )
        return answer

    def close(self, *, at_once: bool = False) -> None:
        """End the process, if it was started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        if at_once:
            process.kill()
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which is what is wanted
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        if self._complaints is not None:
            self._complaints.close()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                encoding="utf-8",
                env=with_code(None, os.environ),
            )
        return self._process

    def _last_words(self) -> str:
        """Return how the process ended: its last line of complaint, and its exit status."""
        process, complaints = self._process, self._complaints
        assert process is not None
        assert complaints is not None
        code = process.wait()
        complaints.seek(0)
        lines = complaints.read().decode("utf-8", errors="replace").strip().splitlines()
        self.close()
        ended = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return f"{lines[-1]} ({ended})" if lines else ended

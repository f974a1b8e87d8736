"""Timer of optimizer steps: several models, in turns, on this machine.

    python -m workloads.training.step.step_time

reads one request per line from standard input and writes one answer per line to standard output,
both JSON.

Request: `models` (sections `architecture` and fields), `train` (fields of TrainConfig),
`vocab_size`, and how a trial would run: `device` (auto, cpu or cuda), `n_threads`, `ranks`,
`micro_batch_tokens`; `budget_s` says how many seconds of steps to time. Answer: `seconds`, per
model a list with the seconds per step of every block, in the order in which the blocks took turns,
`median_s` and `spread_s` per model, `device` (its name), `device_type` (cpu or cuda), `n_threads`,
`versions`; or `error`, a sentence, and
`fix`, what to write instead (empty where nothing is known).
"""

import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from workloads.field_error import message_and_fix
from workloads.layers.modules.init import initialise
from workloads.training import device
from workloads.training.config import TrainConfig
from workloads.training.optimizer.lr_schedule import evaluation_steps
from workloads.training.rank_job import RankJob, section_config
from workloads.training.step.cuda_graph import CapturedStep, capture_if_possible
from workloads.training.step.train_step import WARM_UP_STEPS as CAPTURED_AFTER
from workloads.training.step.train_step import Autocast, TrainStep, rows_per_pass
from workloads.training.step.usage_schedule import UsageSchedule, set_usage_recording

WARM_UP_STEPS = 2
"""Per model, untimed: lazy initialisation, choice of kernels, the optimizer's state."""
BLOCK_S = 0.05
"""A block has as many steps as take the slowest model about this long, at most MOST_STEPS."""
MOST_STEPS = 50
FEWEST_ROUNDS, MOST_ROUNDS = 5, 60
"""Whatever the seconds asked for."""
N_BATCHES = 4
"""Different batches, taken in turn, so that a memory does not read the same few rows each time."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a trial would run."""

    device: str = "auto"
    n_threads: int = 1
    ranks: int = 1
    """One rank's share of the batch is timed, without what ranks tell each other, and captured also
    where ranks that wait for the host are not (`cuda_graph.ranks_wait_for_host`)."""
    micro_batch_tokens: int | None = None
    compile: bool = True
    """On a GPU, time steps compiled and captured, as trials take them (`RankJob.compile`)."""


@dataclass(frozen=True, kw_only=True)
class StepTimings:
    """Seconds per step, per model."""

    seconds: tuple[tuple[float, ...], ...]
    """One number per block; the blocks of one index were neighbours in time."""
    device: str
    device_type: str
    n_threads: int

    @property
    def median_s(self) -> tuple[float, ...]:
        """Median over the blocks."""
        return tuple(statistics.median(blocks) for blocks in self.seconds)

    @property
    def spread_s(self) -> tuple[float, ...]:
        """Median absolute deviation from the median."""
        return tuple(
            statistics.median(abs(block - middle) for block in blocks)
            for blocks, middle in zip(self.seconds, self.median_s, strict=True)
        )


def time_steps(
    models: Sequence[Mapping[str, Any]],
    train: Mapping[str, Any],
    *,
    vocab_size: int,
    setting: Setting,
    budget_s: float,
    clock: Callable[[], float] | None = None,
) -> StepTimings:
    """Time full optimizer steps on random tokens, the models in turns: A B A B.

    The learning rate is zero: the weights stay as initialised, so that every step does the same
    work.

    Args:
        models: `architecture` and the fields of its Config.
        train: Fields of TrainConfig. Of these, what a step looks like is used.
        vocab_size: Token ids.
        setting: Device, threads, ranks, micro batches.
        budget_s: About how long all timed blocks together take.
        clock: Seconds since whenever. None: the time that passes or, for one thread on a CPU, the
            time that this process has a core for: the same on a machine that is otherwise idle, and
            hardly disturbed on others.

    Raises:
        ValueError: If a model or the setting is impossible.
    """
    config = TrainConfig(**train)
    here = device.pick(setting.device, rank=0)
    bf16 = device.uses_bf16(config.precision, here)
    with device.numerics(here, n_threads=setting.n_threads, bf16=bf16), device.gpu_stream(here):
        steps = [
            _step(model, config, vocab_size=vocab_size, setting=setting, here=here, bf16=bf16)
            for model in models
        ]
        alone = here.type == "cpu" and setting.n_threads == 1
        ticks = clock or (time.process_time if alone else time.perf_counter)
        block = partial(block_s, here=here, clock=ticks)
        for step in steps:
            block(step, WARM_UP_STEPS)
        slowest = max(block(step, 1) for step in steps)
        n_steps = max(1, min(MOST_STEPS, round(BLOCK_S / max(slowest, 1e-9))))
        fitting = round(budget_s / max(slowest * n_steps * len(steps), 1e-9))
        n_rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, fitting))
        rounds = [[block(step, n_steps) / n_steps for step in steps] for _ in range(n_rounds)]
    return StepTimings(
        seconds=tuple(zip(*rounds, strict=True)),
        device=_device_name(here),
        device_type=here.type,
        n_threads=setting.n_threads,
    )


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer every line of `requests`."""
    for line in requests:
        try:
            answer = _answer(json.loads(line))
        except (ValueError, RuntimeError, ImportError) as error:
            # Whatever a model may raise is one line for whoever asked; the next request may be a
            # smaller one.
            message, fix = message_and_fix(error)
            answer = {"error": message.split("\n")[0] or type(error).__name__, "fix": fix}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    names = [one.name for one in fields(Setting)]
    times = time_steps(
        request["models"],
        request["train"],
        vocab_size=request["vocab_size"],
        setting=Setting(**{name: request[name] for name in names if name in request}),
        budget_s=request["budget_s"],
    )
    return {
        "seconds": times.seconds,
        "median_s": times.median_s,
        "spread_s": times.spread_s,
        "device": times.device,
        "device_type": times.device_type,
        "n_threads": times.n_threads,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def fresh_step(
    architecture: Any,
    config: TrainConfig,
    *,
    vocab_size: int,
    here: torch.device,
    passes: int,
    autocast: Autocast,
    compiled: bool = False,
) -> TrainStep:
    """Return the optimizer step of a freshly built model.

    Args:
        architecture: Its Config.
        config: Optimizer and batch.
        vocab_size: Token ids.
        here: Where it trains.
        passes: Forward passes of a step.
        autocast: Precision of the forward passes.
        compiled: Whether blocks and loss run compiled.
    """
    with here:
        model = architecture.build(vocab_size)
    initialise(model, 0)
    return TrainStep(
        model.train(),
        config,
        passes=passes,
        autocast=autocast,
        compiled=compiled,
    )


def _step(
    model_section: Mapping[str, Any],
    config: TrainConfig,
    *,
    vocab_size: int,
    setting: Setting,
    here: torch.device,
    bf16: bool,
) -> Callable[[], None]:
    """Return what trains a freshly built model for one step."""
    micro, compiled = setting.micro_batch_tokens, setting.compile and here.type == "cuda"
    share = max(1, config.sequences_per_step // setting.ranks)
    rows = rows_per_pass(config, micro_batch_tokens=micro, vocab_size=vocab_size, here=here)
    fresh = fresh_step(
        section_config("workloads.architectures", "architecture", model_section),
        config,
        vocab_size=vocab_size,
        here=here,
        passes=-(-share // rows),
        autocast=partial(device.autocast, bf16=bf16, device=here),
        compiled=compiled,
    )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        vocab_size, (N_BATCHES, share, config.seq_len + 1), generator=generator
    ).to(here)
    usage = UsageSchedule(evaluate_at=evaluation_steps(config.steps, RankJob.evaluations))
    numbers = itertools.count()
    training: TrainStep | CapturedStep = fresh
    if compiled:
        training = capture_if_possible(fresh, bf16=bf16)
        # Compilation and capture, of steps that record usage and of those that do not, come here.
        for recording in (True, False):
            for number in range(CAPTURED_AFTER + 2):
                set_usage_recording(training.model, now=recording)
                training(tokens[number % N_BATCHES], lr=0.0)

    def step() -> None:
        number = next(numbers)
        set_usage_recording(training.model, now=usage.records(1 + number % config.steps))
        training(tokens[number % N_BATCHES], lr=0.0)

    return step


def block_s(
    step: Callable[[], object], n_steps: int, *, here: torch.device, clock: Callable[[], float]
) -> float:
    """Return the seconds of some steps, from an idle device to an idle device."""
    device.synchronize(here)
    start = clock()
    for _ in range(n_steps):
        step()
    device.synchronize(here)
    return clock() - start


def _device_name(here: torch.device) -> str:
    if here.type == "cuda":
        return str(torch.cuda.get_device_name(here))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    # Whatever a library prints must not stand between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as private:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.stdin, private)

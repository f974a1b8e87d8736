"""Prior of a trial's run time: from trials measured here, else a stated guess."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.snapshot import SweepSnapshot
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec

GUESS_GPU_FLOPS_PER_SECOND = 2.0e13
"""For a GPU without measurements: a few per cent of what recent ones reach, as small models do."""
GUESS_GPU_STEP_S = 6.0e-4
"""A step on a GPU at least, however small the model. Compiled and captured steps of d32, of 8,192
tokens, ran at 11.6 to 14.5 M tokens/s on an H100 (docs/benchmarks.md)."""
GUESS_GPU_START_S = 3.0
"""Compilation and capture of a trial on a GPU, with warm caches. The first trial of a process took
1.6 to 3 s so, and 13 to 18 s with empty caches; the next ones of its kind took 4 ms
(docs/benchmarks.md)."""
GUESS_GPU_START_RANGE_S = (0.0, 18.0)
GUESS_OVERHEAD_S_PER_TOKEN = 2.0e-5
"""On a CPU core, whatever the model: launching small operations. Two-layer models of width 8 to 24
took 24 to 70 µs a token."""
GUESS_SHARE_OF_MATMUL = 0.1
"""Share of a large matrix product's rate that training reaches on a CPU core."""


FAR = 10.0
"""Factor in FLOPs, or in bytes of state, per token over which a time is no longer carried as it is.
On an H100 a dense step carried from 134m to 1.3b, 10 times the FLOPs, was 1.3 times too long; from
width 32 to 1m, 17 times, 9.6 times too long (docs/benchmarks.md)."""
GUESS_RANGE_CPU = (1 / 3, 10.0)
"""True time over the guess. 92 trials of dense, memory and table models (0.04 to 0.2 MFLOP a token)
took 0.35 to 9.6 times the guess, on two cores that up to twenty other processes shared."""
GUESS_RANGE_GPU = (1 / 30, 2.0)
"""True time over the guess: steps reached 10 to 502 TFLOP/s on an H100 and an H200, from a dense
model of width 32 to one of 1.3 billion parameters (docs/benchmarks.md). Of steps that the FLOPs
bound."""
GUESS_RANGE_GPU_STEP = (1 / 4, 14.0)
"""True time over `GUESS_GPU_STEP_S`, of steps that launches bound. Those of d32 took 8.4 ms where
they were not captured (docs/benchmarks.md). How much less the smallest take is not measured."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one finished trial took."""

    architecture: str
    device: str
    flops_per_token: float
    """Forward and backward."""
    s_per_token: float
    """Of training, as if all steps were warm."""
    start_s: float = 0.0
    """Compilation and capture, which a trial takes once."""
    batch_tokens: float | None = None
    """Tokens of an optimizer step; None: not known."""
    state_bytes_per_token: float | None = None
    """Of `state_bytes_per_token`; None where the trial's spec does not tell."""


@dataclass(frozen=True, kw_only=True)
class RuntimePrediction:
    """A predicted duration and where it comes from."""

    seconds: float
    source: str
    """steps (timed for a match), measured (same architecture here), scaled (another one here) or
    guess."""
    factors: tuple[float, float] = (1.0, 1.0)
    """Smallest and largest true time over `seconds`; of a guess, and of what is carried `FAR` or to
    another batch size."""

    @property
    def extrapolated(self) -> bool:
        """Whether it is carried `FAR` from what was measured, or to another batch size."""
        return self.source != "guess" and self.factors != (1.0, 1.0)


def measurements(
    runs: Path, *, snapshot: SweepSnapshot | None = None, limit: int = 2000
) -> list[Measurement]:
    """Read what finished trials of every sweep under `runs` took, those of the newest sweeps first.

    Args:
        runs: Folder of the sweeps; need not exist.
        snapshot: A sweep that was read already.
        limit: At most so many.
    """
    found: list[Measurement] = []
    if not runs.is_dir():
        return found
    sweeps = [SweepDir(p) for p in runs.iterdir() if (p / "trials").is_dir()]
    for sweep in sorted(sweeps, key=lambda s: s.path.stat().st_mtime, reverse=True):
        for spec, result in _results(sweep, snapshot):
            if len(found) >= limit:
                return found
            metrics = result.get("metrics", {})
            train_s = metrics.get("time/train_s")
            flops, tokens = spec.accounting.get("training_flops"), result.get("tokens")
            if train_s and flops and tokens and min(train_s, flops, tokens) > 0:
                found.append(
                    Measurement(
                        architecture=spec.architecture,
                        device=str(result.get("device", "cpu")),
                        flops_per_token=flops / tokens,
                        s_per_token=train_s / tokens,
                        start_s=metrics.get("time/start_s", 0.0),
                        batch_tokens=spec.train.get("batch_tokens"),
                        state_bytes_per_token=state_bytes_per_token(spec),
                    )
                )
    return found


def _results(
    sweep: SweepDir, snapshot: SweepSnapshot | None
) -> Iterator[tuple[TrialSpec, Mapping[str, Any]]]:
    """Yield spec and result of the finished trials of a sweep."""
    if snapshot is not None and snapshot.path == sweep.path:
        for record in snapshot.trials.values():
            if record.result is not None:
                yield record.spec, record.result
        return
    for trial in sweep.trials():
        try:
            if (result := trial.result()) is not None:
                yield trial.spec(), result
        except StoreError:
            continue  # plan, status and report of its own sweep say so


def state_bytes_per_token(spec: TrialSpec) -> float | None:
    """Return the bytes of weights, gradients and optimizer state that a step passes over, a token.

    On one rank. An optimizer of tables other than adamw updates the rows that were read, so the
    tables' share is left out. None where the accounting is of a version without memory.
    """
    numbers = spec.accounting
    if not {"peak_memory_bytes", "activation_bytes", "steps"} <= numbers.keys():
        return None
    # Records from before `model_state_bytes`: their peak holds activations and a fifth of them for
    # temporaries.
    before = numbers["peak_memory_bytes"] - 1.2 * numbers["activation_bytes"]
    held = numbers.get("model_state_bytes", before)
    if spec.train.get("table_optimizer", "adamw") != "adamw":
        held *= 1 - numbers["params_memory_values"] / numbers["total_params"]
    return held * numbers["steps"] / numbers["training_tokens"]


def predict_runtime(
    spec: TrialSpec,
    measured: Sequence[Measurement],
    *,
    flops_per_second: float | None,
    on_gpu: bool = False,
) -> RuntimePrediction:
    """Predict the training time of one trial.

    The nearest measured trial in log FLOPs per token and log batch size, of the same architecture
    if there is one, gives seconds per token, and of a start once. The difference in FLOPs is scaled
    linearly above it and not at all below it, since a small model is bound by launch overhead. Over
    a factor of more than `FAR` that is the upper end of a range, of which the fastest of a guess is
    the lower one.

    Seconds per token hold for other batch sizes where FLOPs bound the steps. Where launches do,
    each step takes what it took, which is the other end of the range. Of a smaller batch, a step on
    a GPU takes the least time of a guess at least.

    Where the bytes of state grow by more than the FLOPs, and by more than `FAR`, the range ends at
    the time scaled by bytes. A time of `a FLOPs + b bytes + c steps` with positive a, b and c grows
    by no more than the largest of the three factors. Activations are no term of their own: per
    token they grow with the width, FLOPs with its square.

    Args:
        spec: With accounting filled in.
        measured: What trials on this machine took.
        flops_per_second: Rate of a large matrix product on a core here, for the guess.
        on_gpu: Where the trial will run. Measurements of the other kind of device do not count.
    """
    measured = [m for m in measured if (m.device != "cpu") == on_gpu]
    tokens = spec.accounting["training_tokens"]
    flops_per_token = spec.accounting["training_flops"] / tokens
    same = [m for m in measured if m.architecture == spec.architecture]
    candidates = same or list(measured)
    guess, fastest, slowest = _guess_s(spec, None if on_gpu else flops_per_second or 1.0e11)
    if candidates:
        batch_tokens = spec.train.get("batch_tokens")
        nearest = min(
            candidates,
            key=lambda m: (
                abs(math.log(m.flops_per_token / flops_per_token))
                + abs(math.log(_growth(m.batch_tokens, batch_tokens)))
            ),
        )
        scale = max(1.0, flops_per_token / nearest.flops_per_token)
        by_bytes = _growth(state_bytes_per_token(spec), nearest.state_bytes_per_token)
        by_steps = _growth(nearest.batch_tokens, batch_tokens)
        unscaled = tokens * nearest.s_per_token
        carried = unscaled * scale
        if on_gpu and by_steps > 1:
            least_step_s = GUESS_GPU_STEP_S * GUESS_RANGE_GPU_STEP[0]
            carried = max(carried, least_step_s * spec.accounting.get("steps", 0.0))
        lowest = carried
        if scale > FAR:
            lowest = min(carried, fastest)
        elif by_steps < 1:
            lowest = min(carried, max(carried * by_steps, fastest))
        highest = max(carried, unscaled * max(by_steps, by_bytes if by_bytes > FAR else 1.0))
        seconds = nearest.start_s + carried
        return RuntimePrediction(
            seconds=seconds,
            source="measured" if same else "scaled",
            factors=((nearest.start_s + lowest) / seconds, (nearest.start_s + highest) / seconds),
        )
    return RuntimePrediction(
        seconds=guess, source="guess", factors=(fastest / guess, slowest / guess)
    )


def _guess_s(spec: TrialSpec, flops_per_second: float | None) -> tuple[float, float, float]:
    """Return guessed seconds of a trial, and the fewest and most that it may take.

    Args:
        spec: With accounting filled in; without its number of steps, a step has no least time.
        flops_per_second: Rate of a large matrix product on a core; None: on a GPU.
    """
    flops, tokens = spec.accounting["training_flops"], spec.accounting["training_tokens"]
    if flops_per_second is not None:
        rate = GUESS_SHARE_OF_MATMUL * flops_per_second
        guess = flops / rate + tokens * GUESS_OVERHEAD_S_PER_TOKEN
        return guess, guess * GUESS_RANGE_CPU[0], guess * GUESS_RANGE_CPU[1]
    of_flops = flops / GUESS_GPU_FLOPS_PER_SECOND
    of_steps = GUESS_GPU_STEP_S * spec.accounting.get("steps", 0.0)
    fastest, slowest = (
        start + max(of_flops * GUESS_RANGE_GPU[end], of_steps * GUESS_RANGE_GPU_STEP[end])
        for end, start in enumerate(GUESS_GPU_START_RANGE_S)
    )
    return GUESS_GPU_START_S + max(of_flops, of_steps), fastest, slowest


def _growth(to: float | None, of: float | None) -> float:
    """Return the factor from `of` to `to`; 1 where either is not known."""
    return to / of if to and of else 1.0


def params_within(seconds: float, flops_per_second: float | None) -> float:
    """Return the parameters of the dense model that trains so long on one device, by the guess.

    It sees 20 tokens per parameter and takes 6 FLOPs per parameter and token (Hoffmann et al.
    2022), so that 20 N (6 N / rate + overhead) seconds pass.

    Args:
        seconds: Of training.
        flops_per_second: Rate of a large matrix product on a core; None: on a GPU.
    """
    rate, overhead = GUESS_GPU_FLOPS_PER_SECOND, 0.0
    if flops_per_second is not None:
        rate, overhead = GUESS_SHARE_OF_MATMUL * flops_per_second, GUESS_OVERHEAD_S_PER_TOKEN
    half = rate * overhead / 12
    return math.sqrt(half**2 + rate * seconds / 120) - half


def matmul_flops_per_second(*, size: int = 64, products: int = 216, repeats: int = 5) -> float:
    """Measure the rate of float32 matrix products on one core here, in a few milliseconds.

    In core seconds: what else runs on the machine takes wall time away. BLAS computes products of
    64 rows and columns in one thread, at the rate of larger ones. Of larger ones its threads wait
    for each other in loops, which are core seconds too: many, where another process holds a core.
    """
    import numpy as np

    stack = np.ones((products, size, size), dtype=np.float32)
    found = np.empty_like(stack)
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        np.matmul(stack, stack[0], out=found)
        best = min(best, time.process_time() - start)
    return 2.0 * products * size**3 / best

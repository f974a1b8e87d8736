"""Training loop of one rank: steps, metrics, evaluations and checkpoints."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from workloads.data.corpus import Corpus
from workloads.data.tokenizer import TextTokenizer
from workloads.distributed.mesh import Mesh
from workloads.sharding.table_shard import count_params
from workloads.training import device
from workloads.training.benchmark_hook import BenchmarkHook, ModelInTraining
from workloads.training.checkpointing import Checkpointer, TrainState
from workloads.training.config import TrainConfig
from workloads.training.data_loader import DataLoader
from workloads.training.evaluate import evaluate
from workloads.training.metrics.device_use import DeviceUse
from workloads.training.metrics.metrics_log import PendingMetrics, Stopwatch, Throughput
from workloads.training.metrics.reporter import Interrupted, Reporter
from workloads.training.optimizer.lr_schedule import evaluation_steps, learning_rate, value_lr_ratio
from workloads.training.rank_job import RankJob
from workloads.training.step.cuda_graph import CapturedStep
from workloads.training.step.train_step import WARM_UP_STEPS, Autocast, TrainStep
from workloads.training.step.usage_schedule import (
    UsageSchedule,
    rows_ever_read,
    set_usage_recording,
    usage_of_all_ranks,
    usage_statistics,
)


class Benchmarks(NamedTuple):
    """Benchmarks of a run, and what turns them into tokens."""

    hook: BenchmarkHook
    tokenizer: TextTokenizer


class Trainer:
    """The loop of one rank: steps, and between them metrics, evaluations and checkpoints.

    Reading a number drains a GPU's queue. There it happens at some steps only, the same ones on
    every rank, and whatever depends on a number happens at these steps too.
    """

    def __init__(
        self,
        job: RankJob,
        config: TrainConfig,
        corpus: Corpus,
        train_step: TrainStep | CapturedStep,
        state: TrainState,
        mesh: Mesh,
        reporter: Reporter,
        *,
        autocast: Autocast,
        stopwatch: Stopwatch,
        use: DeviceUse,
        require_causal: Callable[[], None],
        benchmarks: Benchmarks | None = None,
    ) -> None:
        """Go on from `state`. `require_causal` is called at each evaluation."""
        self._require_causal = require_causal
        self._job, self._config, self._corpus = job, config, corpus
        self._train_step, self._state = train_step, state
        self._world, self._reporter = mesh.world, reporter
        self._autocast, self._stopwatch, self._use = autocast, stopwatch, use
        self._phases = train_step.phases
        self._time_from = state.step + WARM_UP_STEPS + 1
        self._model = train_step.model
        self._here = device.pick(job.device, rank=job.rank)
        self._total_params = count_params(self._model)
        self._loader = DataLoader(corpus, config, seed=job.seed, world=self._world, here=self._here)
        self._evaluate_at = evaluation_steps(config.steps, job.evaluations)
        self._benchmarks = benchmarks
        self._benchmark_at = benchmarks.hook.steps if benchmarks else frozenset[int]()
        self._usage = UsageSchedule(
            evaluate_at=self._evaluate_at, every_steps=job.usage_every_steps
        )
        self._pending = PendingMetrics()
        self._throughput = Throughput(stopwatch, tokens=state.step * config.batch_tokens)
        self._shown: dict[str, float] = {}
        """Loss and rate as last read, for the progress display."""
        self._stop = False
        """Whether some rank was asked to stop, as far as this rank knows."""
        self._checkpointer = Checkpointer(
            state,
            job.checkpoints,
            every_s=job.checkpoint_every_s,
            world=self._world,
            reporter=reporter,
            clock=stopwatch.clock,
        )

    def train(self) -> dict[str, float]:
        """Take the steps that are left; return the metrics of the last one.

        Raises:
            Interrupted: A rank was asked to stop.
            Diverged: The run has gone wrong for good.
        """
        steps = self._config.steps
        metrics: dict[str, float] = {}
        first = self._state.step + 1
        for step in range(first, steps + 1):
            self._stop = self._stop or self._reporter.should_stop()
            if step == first and any(self._world.all_gather_objects(self._stop)):
                # Before the compilation: the last checkpoint, if any, is of this very step.
                raise Interrupted(self._state.step)
            self._step(step)
            if not self._reads_numbers(step):
                self._progress("train")
                continue
            numbers = self._read_steps(step)
            self._progress("train")
            metrics = self._measure(step, numbers)
            if metrics:
                metrics |= {f"time/{name}_s": value for name, value in self._seconds().items()}
                self._reporter.metrics(step, metrics)
            if step < steps:
                announce = partial(self._progress, "checkpoint")
                self._checkpointer.save_if_due(now=self._stop, announce=announce)
                if self._stop:
                    self._world.barrier()
                    raise Interrupted(step)

        self._checkpointer.save_final(metrics, announce=partial(self._progress, "checkpoint"))
        self._world.barrier()
        return metrics

    def _step(self, step: int) -> None:
        """Train on the batch of one step; its numbers stay on the device."""
        self._phases.wanted = self._logs(step) and step >= self._time_from
        before = self._stopwatch.seconds["data"]
        with self._stopwatch.on("data"):
            windows = self._loader.batch(step)
            upcoming = self._loader.batch(step + 1) if step < self._config.steps else None
        records = self._usage.records(step)
        set_usage_recording(self._model, now=records)
        recording = usage_of_all_ranks(self._model, self._world) if records else nullcontext()
        warms_up = not self._train_step.is_warm
        self._state.warm_ups += warms_up
        if warms_up and self._here.type == "cuda":
            with self._stopwatch.on("train"):  # what earlier steps have left in the queue
                device.synchronize(self._here)
        with self._stopwatch.on("start" if warms_up else "train"), recording:
            device.seed(_seed_of(self._job.seed, step=step, rank=self._world.rank), self._here)
            asked = torch.full((), float(self._stop), device=self._here)
            numbers = self._train_step(
                windows,
                lr=learning_rate(step, self._config),
                value_lr_ratio=value_lr_ratio(step, self._config),
                also={"asked": asked},
                upcoming=upcoming,
            )
            self._pending.add(numbers)
            if warms_up:
                device.synchronize(self._here)
        self._phases.add("data", self._stopwatch.seconds["data"] - before)
        self._throughput.tokens += self._config.batch_tokens
        self._state.step = step

    def _reads_numbers(self, step: int) -> bool:
        """Whether the host looks at numbers after this step; the same on every rank."""
        asked_alone = self._stop and self._world.size == 1
        return (
            self._here.type == "cpu"
            or self._logs(step)
            or step in self._evaluate_at
            or step in self._benchmark_at
            or self._usage.reports(step)
            or asked_alone
        )

    def _logs(self, step: int) -> bool:
        return step % self._job.log_every_steps == 0 or step == self._config.steps

    def _read_steps(self, step: int) -> dict[str, float]:
        """Read the numbers of all steps since the last call; return those of the last one.

        Raises:
            Diverged: By one of them, the run has gone wrong for good.
        """
        with self._stopwatch.on("train"):
            self._state.optimizer.settle()
            rows = self._pending.read()
            self._phases.read()
            # A checkpoint holds rank 0's flags: what only the others read would be lost with them.
            self._world.all_reduce_any(rows_ever_read(self._model))
        for earlier, numbers in enumerate(rows, start=step - len(rows) + 1):
            self._stop |= numbers.pop("asked") > 0
            lr = learning_rate(earlier, self._config)
            self._state.divergence.observe(earlier, lr=lr, **numbers)
        self._shown = {"loss": rows[-1]["loss"], "tokens_per_s": self._throughput.rate()}
        return rows[-1]

    def _measure(self, step: int, numbers: dict[str, float]) -> dict[str, float]:
        """Return the metrics that are due after a step, given its own numbers."""
        metrics: dict[str, float] = {}
        if self._logs(step):
            metrics |= {f"train/{name}": value for name, value in numbers.items()}
            metrics["train/lr"] = learning_rate(step, self._config)
            metrics["train/tokens"] = float(self._throughput.tokens)
            rate = self._throughput.lap(is_short=step % self._job.log_every_steps > 0)
            metrics |= {"train/tokens_per_s": rate, **self._use.metrics(rate)}
        if self._usage.reports(step):
            metrics |= usage_statistics(self._model)
        if step in self._evaluate_at:
            phases = self._phases.mean_s()
            metrics |= {f"step_time/{phase}_s": seconds for phase, seconds in phases.items()}
            with self._stopwatch.on("evaluate"):
                self._require_causal()
                metrics |= evaluate(
                    self._model,
                    self._corpus,
                    seq_len=self._config.seq_len,
                    total_params=self._total_params,
                    world=self._world,
                    device=self._here,
                    autocast=self._autocast,
                    progress=partial(self._progress, "evaluate"),
                )
        if self._benchmarks is not None and step in self._benchmark_at:
            with self._stopwatch.on("benchmarks"):
                metrics |= self._benchmarks.hook.measure(self._in_training(self._benchmarks))
        return metrics

    def _in_training(self, benchmarks: Benchmarks) -> ModelInTraining:
        return ModelInTraining(
            model=self._model,
            tokenizer=benchmarks.tokenizer,
            vocab_size=self._corpus.vocab_size,
            seq_len=self._config.seq_len,
            step=self._state.step,
            n_steps=self._config.steps,
            training_s=self._seconds()["train"],
            benchmarks_s=self._stopwatch.seconds.get("benchmarks", 0.0),
            world=self._world,
            here=self._here,
            bf16=device.uses_bf16(self._config.precision, self._here),
            progress=partial(self._progress, "evaluate"),
        )

    def _seconds(self) -> dict[str, float]:
        state = self._state
        return self._stopwatch.split(steps=state.step, warm_ups=state.warm_ups)

    def _progress(self, phase: str) -> None:
        self._reporter.progress(self._state.step, self._config.steps, phase, self._shown)


def _seed_of(seed: int, *, step: int, rank: int) -> int:
    """Return the seed of whatever a model draws on this rank in this step."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])

"""Training loop of one trial: `run(job, reporter)`.

A resumed run equals the undisturbed one bit for bit: batches are a pure function of (seed, step),
random draws are seeded by (seed, step, rank), and a checkpoint holds everything else that one step
hands to the next (`checkpointing.TrainState`).
"""

import logging
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from workloads.checkpoint import checkpoint
from workloads.data.corpus import Corpus
from workloads.data.file_hashes import require_unchanged
from workloads.data.tokenizer import TextTokenizer
from workloads.distributed import process_group
from workloads.distributed.mesh import Mesh, make_mesh
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import materialise_model
from workloads.sharding.table_shard import count_params
from workloads.training import device, kept_step
from workloads.training.benchmark_hook import BenchmarkHook, ModelInTraining
from workloads.training.checkpointing import Checkpointer, TrainState, latest_checkpoint
from workloads.training.compilation import share_compile_cache
from workloads.training.config import TrainConfig
from workloads.training.cuda_graph import CapturedStep, capture_if_possible
from workloads.training.data_loader import DataLoader
from workloads.training.device_use import DeviceUse, device_use
from workloads.training.evaluate import evaluate
from workloads.training.lr_schedule import evaluation_steps, learning_rate, value_lr_ratio
from workloads.training.metrics_log import PendingMetrics, Stopwatch, Throughput
from workloads.training.micro_batch import plan_passes
from workloads.training.phase_timer import HostEvent, PhaseTimer
from workloads.training.pretrained_start import start_from
from workloads.training.rank_job import RankJob, section_config
from workloads.training.reporter import Interrupted, ProgressReporter, Reporter
from workloads.training.train_step import Autocast, TrainStep, even_passes, rows_per_pass
from workloads.training.trained_model import text_tokenizer
from workloads.training.usage_schedule import (
    UsageSchedule,
    rows_ever_read,
    set_usage_recording,
    usage_statistics,
)

LOG = logging.getLogger(__name__)
UNTIMED_STEPS = 3
"""First steps of an attempt, which compile, choose kernels and allocate: their phases say little.
"""


def run(
    job: RankJob,
    reporter: Reporter,
    *,
    benchmarks: BenchmarkHook | None = None,
    between: MutableMapping[str, Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Train from the last checkpoint, or from the start, to the last step; return the last metrics.

    The reporters of other ranks than 0 hear the progress only. Called again after it returned, it
    returns the same metrics at once. `benchmarks` change no weights. `between` takes what one call
    may leave to the next in this process (`kept_step.py`); None keeps nothing.

    Raises:
        Interrupted: The reporter asked to stop; a checkpoint of that step is complete.
        Diverged: The loss or a gradient is not finite, or the loss exploded
            (`workloads/training/divergence.py`).
        process_group.CommunicationError: The ranks did not find, or lost, each other.
        ValueError: A section of the job is wrong, or its data have changed.
    """
    # Everything that can be wrong in the job's sections is found before a rank waits for another.
    sections = _sections(job)
    here = device.pick(job.device, rank=job.rank)
    bf16 = device.uses_bf16(sections.config.precision, here)
    rows_per_pass(
        sections.config,
        micro_batch_tokens=job.micro_batch_tokens,
        vocab_size=sections.source.vocab_size,
        here=here,
    )
    stopwatch = Stopwatch(clock=clock)

    with (
        device.numerics(here, n_threads=job.n_threads, bf16=bf16),
        device.gpu_stream(here, own=job.world_size == 1),
        _join(job, here) as world,
    ):
        mesh = make_mesh(world, memory=job.memory_ranks)
        if not world.is_main:
            reporter = ProgressReporter(reporter)
        # Read before the data are prepared: a finished run has nothing left to do.
        path = latest_checkpoint(job.checkpoints, world)
        sharded = mesh.memory.size > 1 or job.dense_parameters == "sharded"
        saved: dict[str, Any] = {"step": 0}
        if path:
            saved = checkpoint.load(path, mapped=sharded)
        if "metrics" in saved:  # the last step and its evaluation were done before a crash
            return dict(saved["metrics"])

        begin = partial(_begin, reporter, saved["step"], sections.config.steps)
        tell = partial(begin, "data")
        with stopwatch.on("data"):
            tell("hashing the input files")
            require_unchanged(sections.source.files(), job.data_sha256, job.cache)
            corpus: Corpus = sections.source.prepare(job.cache, tell)
        asked = None
        if benchmarks is not None:
            # Before the first step: what cannot be asked must not cost a training.
            asked = Benchmarks(benchmarks, _tokenizer_for_benchmarks(sections.source, corpus))
        begin("model", "building the model")
        kept = kept_step.take(between, job, begins=path is None)
        if kept is None:
            model = _model(job, sections, corpus, mesh, here, resumes=bool(path))
        begin("start", "preparing the first step")
        step: TrainStep | CapturedStep
        if kept is None:
            step, use = _step(job, sections, corpus, mesh, model, here, bf16=bf16)
        else:
            step, use = kept.step, kept.use
        state = TrainState(model=step.model, optimizer=step.optimizer, seconds=stopwatch.seconds)
        if path:
            state.restore(saved, path)
        del saved  # a second copy of all that was loaded
        # After the state is restored: a captured graph fixes the addresses of all tensors.
        if isinstance(step, TrainStep) and _compiles(job, here):
            step = capture_if_possible(step, world_size=world.size, bf16=bf16)
        autocast = partial(device.autocast, bf16=bf16, device=here)
        trainer = Trainer(
            job,
            sections.config,
            corpus,
            step,
            state,
            mesh,
            reporter,
            autocast,
            stopwatch,
            use,
            asked,
        )
        metrics = trainer.train()
        kept_step.keep(between, job, step, use)
        return metrics


class _Sections(NamedTuple):
    """The sections of a job, checked."""

    config: TrainConfig
    source: Any
    """Of the data."""
    architecture: Any
    """The model's Config."""


def _sections(job: RankJob) -> _Sections:
    return _Sections(
        config=TrainConfig(**job.train),
        source=section_config("workloads.data.sources", "source", job.data),
        architecture=section_config("workloads.architectures", "architecture", job.model),
    )


def _compiles(job: RankJob, here: torch.device) -> bool:
    return job.compile and here.type == "cuda"


def _model(
    job: RankJob,
    sections: _Sections,
    corpus: Corpus,
    mesh: Mesh,
    here: torch.device,
    *,
    resumes: bool,
) -> nn.Module:
    """Return this rank's part of the model with its first weights."""
    model = materialise_model(
        partial(sections.architecture.build, corpus.vocab_size),
        mesh,
        layout=job.memory_layout,
        here=here,
        place=job.memory_tables,
        dense=job.dense_parameters,
        # Halves of a master are made of fp32 values.
        host_dtype=torch.bfloat16 if sections.config.table_precision == "bf16" else None,
    )
    initialise(model, job.seed)
    if sections.config.document_mask:
        separator = _separator(sections.architecture, sections.source, corpus)
        cast(Any, model).document_separator = separator
    # A checkpoint holds all weights, those that training started from too.
    if job.from_pretrained is not None and not resumes:
        start_from(model, job)
    return model


def _step(
    job: RankJob,
    sections: _Sections,
    corpus: Corpus,
    mesh: Mesh,
    model: nn.Module,
    here: torch.device,
    *,
    bf16: bool,
) -> tuple[TrainStep, DeviceUse]:
    """Return a step with passes that fit the device, and how its use of the device is counted."""
    config, world = sections.config, mesh.world
    if _compiles(job, here):
        share_compile_cache(job.cache / "compiled", threads=job.n_threads)
    gpus = device.distinct_gpus(world, here)
    chosen = plan_passes(
        sections.architecture,
        corpus.vocab_size,
        config,
        job,
        world,
        bf16=bf16,
        here=here,
        n_gpus=len(gpus),
    )
    passes = even_passes(config.sequences_per_step, world=world, rows=chosen.rows)
    step = TrainStep(
        model.train(),
        config,
        mesh,
        rows=chosen.rows,
        passes=passes,
        autocast=partial(device.autocast, bf16=bf16, device=here),
        seed=job.seed,
        compiled=_compiles(job, here),
        activation_checkpointing=chosen.activation_checkpointing,
        phases=PhaseTimer(HostEvent if here.type == "cpu" else None),
    )
    use = device_use(
        sections.architecture,
        corpus.vocab_size,
        config,
        job,
        bf16=bf16,
        passes=passes,
        activation_checkpointing=chosen.activation_checkpointing,
        gpus=gpus,
    )
    return step, use


def _tokenizer_for_benchmarks(source: Any, corpus: Corpus) -> TextTokenizer:
    tokenizer = text_tokenizer(source, corpus)
    if tokenizer is None:
        raise ValueError(
            "evaluation: the data have words of their own and no tokenizer for text, so suites "
            "cannot be asked; leave evaluation out, or train on text"
        )
    return tokenizer


def _separator(architecture: Any, source: Any, corpus: Corpus) -> int:
    """Return the token that begins a document.

    Raises:
        ValueError: If documents cannot be kept apart.
    """
    if not architecture.DOCUMENT_MASK:
        raise ValueError(
            "train.document_mask: this architecture's positions meet outside of softmax attention, "
            "too; leave it out"
        )
    tokenizer = text_tokenizer(source, corpus)
    if tokenizer is None:
        raise ValueError(
            "train.document_mask: the data have no tokenizer that names a separator of documents; "
            "leave it out, or train on text"
        )
    return tokenizer.separator


class Benchmarks(NamedTuple):
    """Benchmarks of a run, and what turns them into tokens."""

    hook: BenchmarkHook
    tokenizer: TextTokenizer


def _begin(reporter: Reporter, step: int, steps: int, phase: str, said: str) -> None:
    """Log what is done before the first step. Each sentence is a sign of life: this is no hang."""
    LOG.info(said)
    reporter.progress(step, steps, phase, {})


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
        autocast: Autocast,
        stopwatch: Stopwatch,
        use: DeviceUse,
        benchmarks: Benchmarks | None = None,
    ) -> None:
        """Go on from `state`."""
        self._job, self._config, self._corpus = job, config, corpus
        self._train_step, self._state = train_step, state
        self._world, self._reporter = mesh.world, reporter
        self._autocast, self._stopwatch, self._use = autocast, stopwatch, use
        self._phases = train_step.phases
        self._time_from = state.step + UNTIMED_STEPS + 1
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
        for step in range(self._state.step + 1, steps + 1):
            self._stop = self._stop or self._reporter.should_stop()
            self._step(step)
            if not self._reads_numbers(step):
                self._progress("train")
                continue
            numbers = self._read_steps(step)
            self._progress("train")
            metrics = self._measure(step, numbers)
            if metrics:
                seconds = self._stopwatch.seconds
                metrics |= {f"time/{name}_s": value for name, value in seconds.items()}
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
        with self._stopwatch.on("train"):
            set_usage_recording(self._model, now=self._usage.records(step))
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
            rate = self._throughput.lap()
            metrics |= {"train/tokens_per_s": rate, **self._use.metrics(rate)}
        if self._usage.reports(step):
            metrics |= usage_statistics(self._model)
        if step in self._evaluate_at:
            phases = self._phases.mean_s()
            metrics |= {f"step_time/{phase}_s": seconds for phase, seconds in phases.items()}
            with self._stopwatch.on("evaluate"):
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
            training_s=self._stopwatch.seconds["train"],
            benchmarks_s=self._stopwatch.seconds.get("benchmarks", 0.0),
            world=self._world,
            here=self._here,
            bf16=device.uses_bf16(self._config.precision, self._here),
            progress=partial(self._progress, "evaluate"),
        )

    def _progress(self, phase: str) -> None:
        self._reporter.progress(self._state.step, self._config.steps, phase, self._shown)


def _join(job: RankJob, here: torch.device) -> AbstractContextManager[process_group.RankGroup]:
    if job.world_size > 1 and job.rendezvous is None:
        raise ValueError(f"rendezvous: {job.world_size} ranks need a file to meet at, got None")
    return process_group.join(
        rank=job.rank,
        size=job.world_size,
        device=here,
        rendezvous=job.rendezvous or Path(),
        address=job.address,
    )


def _seed_of(seed: int, *, step: int, rank: int) -> int:
    """Return the seed of whatever a model draws on this rank in this step."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])

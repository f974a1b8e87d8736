"""Training of one trial: `run(job, reporter)`.

A resumed run equals the undisturbed one: batches are a pure function of (seed, step), random draws
are seeded by (seed, step, rank), and a checkpoint holds everything else that one step hands to the
next (`checkpointing.TrainState`). It does bit for bit, on a GPU except for sums with atomics
(`device.numerics`).
"""

import logging
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from workloads.checkpoint import checkpoint
from workloads.data.corpus import Corpus
from workloads.data.file_hashes import require_unchanged
from workloads.data.tokenizer import TextTokenizer
from workloads.distributed import process_group
from workloads.distributed.mesh import Mesh, make_mesh
from workloads.layers.modules.init import initialise
from workloads.sharding.fsdp import keep_gathered
from workloads.sharding.materialise import materialise_model
from workloads.sharding.table_shard import count_params
from workloads.training import device, kept_step
from workloads.training.benchmark_hook import BenchmarkHook
from workloads.training.causality import require_causal
from workloads.training.checkpointing import TrainState, latest_checkpoint
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.micro_batch import plan_passes
from workloads.training.metrics.device_use import DeviceUse, device_use
from workloads.training.metrics.metrics_log import Stopwatch
from workloads.training.metrics.reporter import ProgressReporter, Reporter
from workloads.training.pretrained_start import start_from
from workloads.training.rank_job import RankJob, section_config
from workloads.training.step.compilation import share_compile_cache
from workloads.training.step.cuda_graph import CapturedStep, capture_if_possible
from workloads.training.step.phase_timer import HostEvent, PhaseTimer
from workloads.training.step.train_step import Autocast, TrainStep, even_passes, rows_per_pass
from workloads.training.trained_model import text_tokenizer
from workloads.training.trainer import Benchmarks, Trainer

LOG = logging.getLogger(__name__)


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
        Interrupted: The reporter asked to stop; a checkpoint of that step is complete, or there was
            no step.
        Diverged: The loss or a gradient is not finite, or the loss exploded
            (`workloads/training/metrics/divergence.py`).
        process_group.CommunicationError: The ranks did not find, or lost, each other.
        ValueError: A section of the job is wrong, its data have changed, or the model sees later
            tokens.
    """
    # Everything that can be wrong in the job's sections is found before a rank waits for another.
    plan = _checked(job)
    here, bf16 = plan.here, plan.bf16
    stopwatch = Stopwatch(clock=clock)
    # Now and never later: a folder that somebody moves away in mid-run must not come back.
    job.checkpoints.parent.mkdir(parents=True, exist_ok=True)

    with (
        device.numerics(here, n_threads=job.n_threads, bf16=bf16),
        device.gpu_stream(here),
        _join(job, here) as world,
    ):
        mesh = make_mesh(world, memory=job.memory_ranks)
        if not world.is_main:
            reporter = ProgressReporter(reporter)
        # Read before the data are prepared: a finished run has nothing left to do.
        path = latest_checkpoint(job.checkpoints, world)
        sharded = mesh.memory.size > 1 or job.dense_parameters == "sharded"
        saved: dict[str, Any] = checkpoint.load(path, mapped=sharded) if path else {"step": 0}
        if "metrics" in saved:  # the last step and its evaluation were done before a crash
            return dict(saved["metrics"])

        begin = partial(_begin, reporter, saved["step"], plan.config.steps)
        with stopwatch.on("data"):
            corpus = _prepared_data(plan, partial(begin, "data"))
        _require_short_probes(plan.architecture, corpus)
        asked = None
        if benchmarks is not None:
            # Before the first step: what cannot be asked must not cost a training.
            asked = Benchmarks(benchmarks, _tokenizer_for_benchmarks(plan.source, corpus))
        begin("model", "building the model")
        kept = kept_step.take(between, job, begins=path is None)
        model = kept.step.model if kept else _model(plan, corpus, mesh, resumes=bool(path))
        begin("start", "preparing the first step")
        step: TrainStep | CapturedStep
        step, use = (kept.step, kept.use) if kept else _step(plan, corpus, mesh, model)
        state = TrainState(model=step.model, optimizer=step.optimizer, seconds=stopwatch.seconds)
        if path:
            state.restore(saved, path)
        del saved  # a second copy of all that was loaded
        # After the state is restored: a captured graph fixes the addresses of all tensors.
        if isinstance(step, TrainStep) and plan.compiles:
            step = capture_if_possible(step, bf16=bf16)
        check = plan.causality_check(step.model, corpus.vocab_size)
        if path is None:
            check()
        trainer = Trainer(
            job,
            plan.config,
            corpus,
            step,
            state,
            mesh,
            reporter,
            require_causal=check,
            autocast=plan.autocast,
            stopwatch=stopwatch,
            use=use,
            benchmarks=asked,
        )
        try:
            metrics = trainer.train()
        finally:
            if isinstance(step, CapturedStep) and world.size > 1:
                step.drop_graphs()
        kept_step.keep(between, job, step, use)
        return metrics


@dataclass(frozen=True, kw_only=True)
class _RankPlan:
    """What a rank trains, and how: its job with the sections read and the device chosen."""

    job: RankJob
    config: TrainConfig
    source: Any
    """Of the data."""
    architecture: Any
    """The model's Config."""
    here: torch.device
    bf16: bool

    @property
    def compiles(self) -> bool:
        return self.job.compile and self.here.type == "cuda"

    @property
    def autocast(self) -> Autocast:
        return partial(device.autocast, bf16=self.bf16, device=self.here)

    def causality_check(self, model: nn.Module, vocab_size: int) -> Callable[[], None]:
        """Return `require_causal` of a model, or nothing to do if it says that it is not causal."""
        if "evaluation" in getattr(self.architecture, "non_causal_reasons", {}):
            return lambda: None
        return partial(
            require_causal,
            model,
            vocab_size,
            seq_len=self.config.seq_len,
            here=self.here,
            autocast=self.autocast,
        )


def _checked(job: RankJob) -> _RankPlan:
    """Return the plan of a job.

    Raises:
        ValueError: If a section, the device or the micro-batch is impossible.
    """
    config = TrainConfig(**job.train)
    source = section_config("workloads.data.sources", "source", job.data)
    architecture = section_config("workloads.architectures", "architecture", job.model)
    here = device.pick(job.device, rank=job.rank)
    rows_per_pass(
        config,
        micro_batch_tokens=job.micro_batch_tokens,
        vocab_size=source.vocab_size,
        here=here,
    )
    return _RankPlan(
        job=job,
        config=config,
        source=source,
        architecture=architecture,
        here=here,
        bf16=device.uses_bf16(config.precision, here),
    )


def _prepared_data(plan: _RankPlan, tell: Callable[[str], None]) -> Corpus:
    tell("hashing the input files")
    require_unchanged(plan.source.files(), plan.job.data_sha256, plan.job.cache)
    corpus: Corpus = plan.source.prepare(plan.job.cache, tell)
    return corpus


def _require_short_probes(architecture: Any, corpus: Corpus) -> None:
    """Refuse probes that the model cannot read, before training and not at its first evaluation.

    Raises:
        ValueError: If one is longer than the architecture's longest sequence.
    """
    longest = getattr(architecture, "longest_sequence", None)
    if longest is None:
        return
    for probe in corpus.probes:
        rows = zip(probe.prompts, probe.answers, strict=True)
        # The last token is only predicted, never read.
        length = max((len(prompt) + len(answer) - 1 for prompt, answer in rows), default=0)
        if length > longest:
            field = getattr(architecture, "LONGEST_SEQUENCE_FIELD", "max_seq_len")
            raise ValueError(
                f"data: the probe {probe.name} has a fact of {length:,} tokens, and the model "
                f"reads {longest:,}; raise model.{field}, or leave the fact out"
            )


def _model(plan: _RankPlan, corpus: Corpus, mesh: Mesh, *, resumes: bool) -> nn.Module:
    """Return this rank's part of the model with its first weights."""
    job = plan.job
    model = materialise_model(
        partial(plan.architecture.build, corpus.vocab_size),
        mesh,
        layout=job.memory_layout,
        here=plan.here,
        place=job.memory_tables,
        dense=job.dense_parameters,
        # Halves of a master are made of fp32 values.
        host_dtype=torch.bfloat16 if plan.config.table_precision == "bf16" else None,
    )
    _require_counts(plan, corpus.vocab_size, model)
    initialise(model, job.seed)
    if plan.config.document_mask:
        separator = _separator(plan.architecture, plan.source, corpus)
        cast(Any, model).document_separator = separator
    # A checkpoint holds all weights, those that training started from too.
    if job.from_pretrained is not None and not resumes:
        start_from(model, job)
    return model


def _require_counts(plan: _RankPlan, vocab_size: int, model: nn.Module) -> None:
    """Compare the parameters that a sweep was planned with and those of the model.

    Raises:
        ValueError: If they differ. Sizes, memory and `match` would be wrong, too.
    """
    counted, built = plan.architecture.param_count(vocab_size).total, count_params(model)
    if counted != built:
        raise ValueError(
            f"model: param_count gives {counted:,} parameters, the model has {built:,}; mend the "
            "components of its Config (tests/unit/workloads/architectures/test_contract.py)"
        )


def _step(
    plan: _RankPlan, corpus: Corpus, mesh: Mesh, model: nn.Module
) -> tuple[TrainStep, DeviceUse]:
    """Return a step with passes that fit the device, and how its use of the device is counted."""
    job, config, world = plan.job, plan.config, mesh.world
    if plan.compiles:
        share_compile_cache(job.cache / "compiled", threads=job.n_threads)
    gpus = device.distinct_gpus(world, plan.here)
    chosen = plan_passes(
        plan.architecture,
        corpus.vocab_size,
        config,
        job,
        world,
        bf16=plan.bf16,
        here=plan.here,
        n_gpus=len(gpus),
    )
    if not chosen.reshard_after_forward:
        keep_gathered(model)
    passes = even_passes(config.sequences_per_step, world=world, rows=chosen.rows)
    step = TrainStep(
        model.train(),
        config,
        mesh,
        passes=passes,
        autocast=plan.autocast,
        seed=job.seed,
        compiled=plan.compiles,
        activation_checkpointing=chosen.activation_checkpointing,
        phases=PhaseTimer(HostEvent if plan.here.type == "cpu" else None),
    )
    use = device_use(
        plan.architecture,
        corpus.vocab_size,
        config,
        job,
        bf16=plan.bf16,
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


def _begin(reporter: Reporter, step: int, steps: int, phase: str, said: str) -> None:
    """Log what is done before the first step. Each sentence is a sign of life: this is no hang."""
    LOG.info(said)
    reporter.progress(step, steps, phase, {})


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

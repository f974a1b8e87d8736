"""Train and evaluate one trial: `run(job, reporter)`, the loop, readable top to bottom.

What makes a resumed run equal the undisturbed one: batches are a pure function of (seed, step), random draws are
seeded by (seed, step, rank), and a checkpoint holds everything else that one step hands to the next: weights and
buffers, optimizer state, what divergence detection remembers, and the seconds spent.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from workloads.checkpoint import checkpoint
from workloads.checkpoint.state_split import local_shards, merge_state, split_state
from workloads.data.corpus import Corpus
from workloads.data.file_hashes import require_unchanged
from workloads.distributed import process_group
from workloads.distributed.local_part import local_shard
from workloads.distributed.mesh import make_mesh
from workloads.layers.modules.init import initialise
from workloads.sharding.gradient_allreduce import GradientAllReduce
from workloads.sharding.materialise import Dense, Layout, Place, materialise_model
from workloads.sharding.table_shard import count_params
from workloads.training import device
from workloads.training.adamw import Optimizer
from workloads.training.config import TrainConfig
from workloads.training.divergence import DivergenceDetector
from workloads.training.evaluate import evaluate
from workloads.training.loss import summed_cross_entropy
from workloads.training.lr_schedule import evaluation_steps, learning_rate, value_lr_ratio
from workloads.training.reporter import Interrupted, Reporter

LOG = logging.getLogger(__name__)
RAREST_OBSERVED = 16
"""Use of memories and experts is recorded in one of 16 steps, and in a step that reports it where none was recorded
since the report before. Recording costs up to a tenth of a step on an H200 (docs/benchmarks.md), so less than 1 % of a
run that reports no more often."""
_MOST_OFTEN = 10
"""Pause between checkpoints over the time it took to write the last one."""


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """One rank's share of one trial. The first four fields decide the result, the rest where and how it is made."""

    data: Mapping[str, Any]
    """`source` and the fields of that source's Config."""
    model: Mapping[str, Any]
    """`architecture` and the fields of that architecture's Config."""
    train: Mapping[str, Any]
    """Fields of TrainConfig."""
    seed: int
    """Seeds the initial weights and the order of the data."""
    checkpoints: Path
    """Folder of this trial's checkpoints, shared by its ranks and attempts."""
    cache: Path
    """Folder where data sources keep what they prepared, shared by all trials."""
    data_sha256: Mapping[str, str] = field(default_factory=dict)
    """Content hash per field of `data` that names files (`workloads/data/file_hashes.py`)."""
    log_every_steps: int = 10
    evaluations: int = 4
    """Evaluations over the run, evenly spaced, the last one after the last step."""
    usage_every_steps: int | None = None
    """Steps between reports of how memories and experts are used. None: at each evaluation."""
    checkpoint_every_s: float = 30.0
    """At least this long between checkpoints, longer where writing one would take over a tenth of the time. 0: one
    after every step, whatever it costs."""
    micro_batch_tokens: int | None = None
    """Tokens per forward pass and rank, at least seq_len. None: the rank's whole share at once on a GPU, as many as
    keep the logits in reusable memory on a CPU (`device.MAX_CPU_LOGITS`)."""
    n_threads: int = 1
    device: str = "auto"
    """auto, cpu or cuda."""
    rank: int = 0
    world_size: int = 1
    memory_ranks: int = 1
    """Neighbouring ranks that hold one copy of the memory tables together; divides `world_size`."""
    memory_layout: Layout = "columns"
    """What each of them holds: some columns of all rows, or some rows."""
    memory_tables: Place = "device"
    """Where memory tables and their moments lie: with the rest of the model, or in the host's memory."""
    dense_parameters: Dense = "replicated"
    """Whether each rank holds all parameters but the tables, or a part of each (`sharding/fsdp.py`)."""
    rendezvous: Path | None = None
    """File through which several ranks find each other; on storage that they share."""
    address: str | None = None
    """Under which ranks on other machines reach this one; None: the machine's name."""


def run(
    job: RankJob, reporter: Reporter, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Train from the last checkpoint, or from the start, to the last step; return the last metrics.

    Of other ranks than 0 the reporter hears the progress only. Called again after it returned, it returns the same metrics at once.

    Raises:
        Interrupted: The reporter asked to stop; a checkpoint of that step is complete.
        Diverged: The loss or a gradient is not finite, or the loss exploded (`workloads/training/divergence.py`).
        ranks.CommunicationError: The ranks did not find, or lost, each other.
        ValueError: A section of the job is wrong, or its data have changed.
    """
    config = TrainConfig(**job.train)
    source = section_config("workloads.data.sources", "source", job.data)
    architecture = section_config("workloads.architectures", "architecture", job.model)
    here = device.pick(job.device, rank=job.rank)
    bf16 = device.uses_bf16(config.precision, here)
    autocast = partial(device.autocast, bf16=bf16, device=here)
    rows_at_once = rows_per_pass(job, config, vocab_size=source.vocab_size, here=here)
    steps, evaluate_at = config.steps, evaluation_steps(config.steps, job.evaluations)
    spent = Stopwatch(clock=clock)

    with device.numerics(here, n_threads=job.n_threads, bf16=bf16), _join(job, here) as world:
        if not world.is_main:
            reporter = _Follower(reporter)
        mesh = make_mesh(world, memory=job.memory_ranks)
        saved = world.broadcast(
            str(checkpoint.latest(job.checkpoints) or "") if world.is_main else None
        )
        state: dict[str, Any] = {"step": 0}
        if saved:
            apart_here = mesh.memory.size > 1 or job.dense_parameters == "sharded"
            state = checkpoint.load(Path(saved), mapped=apart_here)
        if "metrics" in state:
            return dict(state["metrics"])

        reporter.progress(state["step"], steps, "data", {})
        with spent.on("data"):
            require_unchanged(source.files(), job.data_sha256, job.cache)
            corpus: Corpus = source.prepare(job.cache, LOG.info)
        model = materialise_model(
            partial(architecture.build, corpus.vocab_size),
            mesh,
            layout=job.memory_layout,
            here=here,
            place=job.memory_tables,
            dense=job.dense_parameters,
        )
        initialise(model, job.seed)
        model.train()
        total_params = count_params(model)
        optimizer = Optimizer(model, config, mesh, seed=job.seed)
        sums = GradientAllReduce(model, mesh, without=optimizer.deferred)
        watch = DivergenceDetector()
        if saved:
            state = merge_state(
                state, checkpoint.pieces(Path(saved)), local_shards(model), optimizer.names
            )
            put_weights(model, state["weights"])
            optimizer.adamw.load_state_dict(state["optimizer"])
            if optimizer.tables is not None:
                optimizer.tables.load_state_dict(state["tables"])
            watch = DivergenceDetector(**state["watch"])
            spent.seconds.update(state["seconds"])
        first = state["step"] + 1
        state = {}  # a second copy of all that was loaded

        meter = Meter(spent, tokens=(first - 1) * config.batch_tokens)
        saved_at, pause_s = clock(), job.checkpoint_every_s
        unread: list[dict[str, Tensor]] = []
        metrics: dict[str, float] = {}
        stop = False
        even = config.sequences_per_step % world.size == 0
        # Where nothing is shared out rank 0 has all there is to save.
        writers = world if local_shards(model) else process_group.RankGroup()
        writes = world.is_main or writers.size > 1

        for step in range(first, steps + 1):
            stop = stop or reporter.should_stop()
            with spent.on("data"):
                windows = _windows(corpus, config, job, step=step, world=world, here=here)
            with spent.on("train"):
                set_usage_recording(model, now=records_usage(job, step, evaluate_at=evaluate_at))
                device.seed(_draws_of(job.seed, step=step, rank=world.rank), here)
                with mesh.even(even):
                    losses = accumulate_gradients(
                        model,
                        windows,
                        batch_tokens=config.batch_tokens,
                        rows=rows_at_once,
                        passes=_passes(config.sequences_per_step, world=world, rows=rows_at_once),
                        autocast=autocast,
                        before_last=sums.start,
                    )
                asked = losses["loss"].new_full((), float(stop))
                sums.finish(also=[*losses.values(), asked])
                optimizer.gather()
                norms = optimizer.clip()
                optimizer.step(
                    learning_rate(step, config), value_lr_ratio=value_lr_ratio(step, config)
                )
                unread.append({**losses, "asked": asked, **norms})
            meter.count(config.batch_tokens)

            # Reading a number drains a GPU's queue, so there it happens at some steps only, the same ones on every
            # rank, and whatever depends on a number happens at these steps too.
            log_now = step % job.log_every_steps == 0 or step == steps
            evaluate_now = step in evaluate_at
            usage_now = reports_usage(job, step, evaluate_at=evaluate_at)
            asked_alone = stop and world.size == 1
            if not (here.type == "cpu" or log_now or evaluate_now or usage_now or asked_alone):
                reporter.progress(step, steps, "train", meter.shown)
                continue
            with spent.on("train"):
                rows = _read(unread)
                # Before a checkpoint, which holds rank 0's buffers: what the others saw since would be lost with them.
                world.all_reduce_any(_ever_read(model))
            for earlier, seen in enumerate(rows, start=step - len(rows) + 1):
                lr = learning_rate(earlier, config)
                stop |= seen.pop("asked") > 0
                watch.observe(earlier, lr=lr, **seen)
            meter.shown = {"loss": seen["loss"], "tokens_per_s": meter.rate()}
            reporter.progress(step, steps, "train", meter.shown)

            metrics = {}
            if log_now:
                metrics |= {f"train/{name}": value for name, value in seen.items()}
                metrics |= {"train/lr": lr, "train/tokens": float(meter.tokens)}
                metrics |= {"train/tokens_per_s": meter.lap()}
            if usage_now:
                metrics |= _statistics(model)
            if evaluate_now:
                with spent.on("evaluate"):
                    metrics |= evaluate(
                        model,
                        corpus,
                        seq_len=config.seq_len,
                        total_params=total_params,
                        world=world,
                        device=here,
                        autocast=autocast,
                        progress=partial(reporter.progress, step, steps, "evaluate", meter.shown),
                    )
            if metrics:
                metrics |= {f"time/{name}_s": seconds for name, seconds in spent.seconds.items()}
                reporter.metrics(step, metrics)

            now = clock()
            due = now - saved_at >= pause_s
            if writers.size > 1:
                due = writers.broadcast("due" if due else None) is not None
            if writes and step < steps and (stop or due):
                reporter.progress(step, steps, "checkpoint", meter.shown)
                state = {
                    "step": step,
                    "weights": weights(model),
                    "optimizer": optimizer.adamw.state_dict(),
                    "tables": optimizer.tables and optimizer.tables.state_dict(),
                    "watch": asdict(watch),
                    "seconds": dict(spent.seconds),
                }
                state, pieces = split_state(state, local_shards(model), optimizer.names)
                path = checkpoint.save(job.checkpoints, step, state, pieces=pieces, world=writers)
                reporter.checkpoint(step, path)
                saved_at = clock()
                pause_s = job.checkpoint_every_s and max(
                    job.checkpoint_every_s, _MOST_OFTEN * (saved_at - now)
                )
            if stop and step < steps:
                world.barrier()
                raise Interrupted(step)

        if writes:
            reporter.progress(steps, steps, "checkpoint", meter.shown)
            state = {"step": steps, "weights": weights(model), "metrics": metrics}
            state, pieces = split_state(state, local_shards(model), optimizer.names)
            path = checkpoint.save_final(job.checkpoints, state, pieces=pieces, world=writers)
            reporter.checkpoint(steps, path)
        world.barrier()
        return metrics


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds per activity, over all attempts of what was kept."""

    clock: Callable[[], float]
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "evaluate": 0.0, "data": 0.0}
    )

    @contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Add the seconds of the block to `activity`."""
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[activity] += self.clock() - start


class Meter:
    """Tokens seen, and how fast: evaluation and checkpoints do not count as time."""

    def __init__(self, spent: Stopwatch, *, tokens: int) -> None:
        """Start at `tokens`, which earlier attempts have seen."""
        self.tokens = tokens
        self.shown: dict[str, float] = {}
        """Loss and rate as last read, for the progress display."""
        self._spent = spent
        self._mark = (tokens, self._busy_s())

    def count(self, tokens: int) -> None:
        """Add a step's tokens."""
        self.tokens += tokens

    def rate(self) -> float:
        """Return tokens per second since the last lap."""
        tokens, busy_s = self.tokens - self._mark[0], self._busy_s() - self._mark[1]
        return tokens / busy_s if busy_s > 0 else 0.0

    def lap(self) -> float:
        """Return the rate and start a new lap."""
        rate = self.rate()
        self._mark = (self.tokens, self._busy_s())
        return rate

    def _busy_s(self) -> float:
        return self._spent.seconds["train"] + self._spent.seconds["data"]


class _Follower:
    """The reporter of every rank but the first: it only says how far the rank is, and hears a request to stop."""

    def __init__(self, reporter: Reporter) -> None:
        self.progress = reporter.progress
        self.should_stop = reporter.should_stop

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def checkpoint(self, step: int, path: Path) -> None:
        pass


def section_config(package: str, key: str, section: Mapping[str, Any]) -> Any:
    """Return the Config that a section of a sweep file describes. JSON's lists are the tuples they were."""
    config = import_module(f"{package}.{section[key]}").Config
    fields = {name: value for name, value in section.items() if name != key}
    return config(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


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


def _windows(
    corpus: Corpus,
    config: TrainConfig,
    job: RankJob,
    *,
    step: int,
    world: process_group.RankGroup,
    here: torch.device,
) -> Int64[Tensor, "sequences seq_len+1"]:
    """Return this rank's slice of the global batch of `step`."""
    share = world.local_range(config.sequences_per_step)
    if not share:
        raise ValueError(
            f"train.batch_tokens holds {config.sequences_per_step} sequences for {world.size} ranks; "
            "use fewer ranks or a larger batch"
        )
    start = (step - 1) * config.sequences_per_step
    indices = np.arange(start + share.start, start + share.stop, dtype=np.int64)
    windows = torch.from_numpy(corpus.windows(indices, seq_len=config.seq_len, seed=job.seed))
    if here.type == "cuda":
        # From ordinary memory the copy would wait for the step before.
        windows = windows.pin_memory()
    return windows.to(here, non_blocking=True)


def rows_per_pass(job: RankJob, config: TrainConfig, *, vocab_size: int, here: torch.device) -> int:
    """Return sequences per forward pass."""
    if job.micro_batch_tokens is None:
        if here.type == "cpu":
            return max(1, device.MAX_CPU_LOGITS // (config.seq_len * vocab_size))
        return config.sequences_per_step
    if job.micro_batch_tokens < config.seq_len:
        raise ValueError(
            f"micro_batch_tokens must be at least one sequence ({config.seq_len}), got {job.micro_batch_tokens}"
        )
    return job.micro_batch_tokens // config.seq_len


def _passes(sequences: int, *, world: process_group.RankGroup, rows: int) -> int:
    """Return how many forward passes of at most `rows` sequences a rank makes in a step, as many as every other.

    A layer may add up over the ranks in each pass (`QueryBatchNorm`). Where one sequence at a time does not divide
    evenly, the ranks with one more take two at once.
    """
    fewest, most = sequences // world.size, -(-sequences // world.size)
    return min(-(-most // rows), fewest)


def accumulate_gradients(
    model: nn.Module,
    windows: Int64[Tensor, "sequences seq_len+1"],
    *,
    batch_tokens: int,
    rows: int,
    autocast: Callable[[], AbstractContextManager[object]],
    passes: int | None = None,
    before_last: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """Add the gradient of this rank's part of the loss, at most `rows` sequences at a time; return that part.

    `passes` is how many times (`_passes`), as few as `rows` allows if None. `before_last` is called before the backward
    pass after which no more is added.

    The loss is the mean over the global batch of `batch_tokens` targets, so the parts of all micro batches and
    ranks add up to it, whatever their sizes. `auxiliary_loss`, where a model has one, is what its layers add: a mean
    over the tokens of each micro batch, hence over those of the global batch.
    """
    parts = windows.tensor_split(passes or -(-len(windows) // rows))
    totals = {"loss": torch.zeros((), device=windows.device)}
    for number, part in enumerate(parts, start=1):
        inputs, targets = part[:, :-1], part[:, 1:]
        with autocast():
            logits = model(inputs)
        nll = summed_cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        losses = {"loss": nll / batch_tokens}
        auxiliary = _auxiliary_loss(model)
        if auxiliary is not None:
            losses["auxiliary_loss"] = auxiliary * (targets.numel() / batch_tokens)
        if number == len(parts):
            before_last()
        torch.autograd.backward(tuple(losses.values()))
        for name, loss in losses.items():
            totals[name] = totals.get(name, torch.zeros_like(loss)) + loss.detach()
    return totals


def _auxiliary_loss(model: nn.Module) -> Tensor | None:
    """Return what the layers of a model add to the loss, if it has such layers."""
    auxiliary: Callable[[], Tensor | None] | None = getattr(model, "auxiliary_loss", None)
    return auxiliary() if auxiliary is not None else None


def reports_usage(job: RankJob, step: int, *, evaluate_at: frozenset[int]) -> bool:
    """Whether a step reports how memories and experts were used: those that evaluate do, and those asked for."""
    every = job.usage_every_steps
    return step in evaluate_at or (every is not None and step % every == 0)


def records_usage(job: RankJob, step: int, *, evaluate_at: frozenset[int]) -> bool:
    """Whether that use is recorded in a step: in one of RAREST_OBSERVED, and in a report that would hold none."""
    since = (step - 1) % RAREST_OBSERVED
    if since == 0:
        return True
    reports = partial(reports_usage, job, evaluate_at=evaluate_at)
    return reports(step) and any(reports(earlier) for earlier in range(step - since, step))


def set_usage_recording(model: Any, *, now: bool) -> None:
    """Have a model that can, record the use of its memories and experts in the passes to come, or not."""
    if hasattr(model, "recording_usage"):
        model.recording_usage = now


def _read(unread: list[dict[str, Tensor]]) -> list[dict[str, float]]:
    """Return the numbers of the steps since the last call, oldest first, in one transfer; empty the list."""
    names = list(unread[0])
    values = torch.stack([tensor for row in unread for tensor in row.values()]).tolist()
    unread.clear()
    return [
        dict(zip(names, values[i : i + len(names)], strict=True))
        for i in range(0, len(values), len(names))
    ]


def _statistics(model: nn.Module) -> dict[str, float]:
    """Return what the model says about its own steps since the last call, of rank 0's share of them but for rows ever read."""
    statistics: Callable[[], dict[str, float]] | None = getattr(model, "statistics", None)
    return statistics() if statistics is not None else {}


def _ever_read(model: nn.Module) -> list[Tensor]:
    """Return what the model keeps of which rows training has read on this rank, if it has such."""
    ever_read: Callable[[], list[Tensor]] | None = getattr(model, "ever_read", None)
    return ever_read() if ever_read is not None else []


def _draws_of(seed: int, *, step: int, rank: int) -> int:
    """Return the seed of whatever a model draws on this rank in this step."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and all buffers by name, those that a state dict leaves out too."""
    return {name: tensor.detach() for name, tensor in _named_tensors(model)}


def put_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write saved values into a model, of what this rank holds a part of that part.

    Raises:
        ValueError: If the names differ.
    """
    named = dict(_named_tensors(model))
    if named.keys() != weights.keys():
        names = ", ".join(sorted(named.keys() ^ weights.keys()))
        raise ValueError(
            f"checkpoint and model differ in {names}; put together first what ranks saved in pieces "
            "(checkpoint/state_split.py), or, if the architecture's code changed since, delete the trial's checkpoints to train it anew"
        )
    with torch.no_grad():
        for name, tensor in named.items():
            local_shard(tensor).copy_(weights[name])


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()

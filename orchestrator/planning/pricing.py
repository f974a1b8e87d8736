"""Pricing of a sweep before it runs, and its comparison with its folder.

It asks each architecture's closed forms for parameters, FLOPs, bytes and memory, through
`orchestrator/sweep/registry.py`. Nothing is built and nothing is started.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.control.node_exclusion import excluded
from orchestrator.node.hardware import visible_gpus
from orchestrator.node.local_node import local_node
from orchestrator.planning import changed_code, design_checks, evaluation_cost
from orchestrator.planning.evaluation_cost import EvaluationCost, PricedTraining
from orchestrator.planning.paper_convention import block_flops
from orchestrator.planning.runtime_prior import (
    Measurement,
    RuntimePrediction,
    matmul_flops_per_second,
    predict_runtime,
)
from orchestrator.planning.step_seconds import StepSeconds
from orchestrator.records import earlier_submissions, liveness
from orchestrator.records.code_digest import ARCHITECTURES
from orchestrator.records.errors import StoreError
from orchestrator.records.snapshot import SweepSnapshot, TrialRecord
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import (
    Resources,
    TrialSpec,
    TrialState,
    canonical_json,
    identity_difference,
)
from orchestrator.records.units import plural
from orchestrator.scheduling.demand import Node
from orchestrator.scheduling.gpu_sharing import largest_peak, ranks_per_gpu
from orchestrator.scheduling.trial_demand import with_gpu_count
from orchestrator.sweep import registry
from orchestrator.sweep.load import Sweep

BATCH = 64
"""Sequences decoded together in `bytes_read_per_token_batch64`: they share weights,
hardly rows of a table."""
RATES = frozenset(
    ("lr", "warmup_fraction", "decay_fraction", "final_lr_fraction", "weight_decay", "eps")
)
"""Fields of the train section on which no price depends: trials that differ in them alone are
priced once."""
UNREADABLE = "unreadable"
MOST_COMPARED = 200
"""Trials on disk that a new one is compared with to say why it is new."""


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial of the sweep file, priced, and what would become of it."""

    spec: TrialSpec
    status: str
    """new, waiting, done, running, resume, retry, cancelled, or unreadable: its folder is left
    alone."""
    why: str
    """For a new trial what makes it new; otherwise what is there."""
    runtime: RuntimePrediction
    remaining: float = 1.0
    """Share of the training still to do."""

    @property
    def to_train(self) -> bool:
        """Whether submitting would train it."""
        return self.status not in ("done", "running", UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A priced sweep."""

    sweep: Sweep
    trials: tuple[PlannedTrial, ...]
    left_over: tuple[str, ...]
    """Trials on disk that the file no longer asks for. They are kept and left alone."""
    snapshot: SweepSnapshot
    """The sweep's folder as it was priced."""
    n_left_over_done: int = 0
    """Of those left over: trials that have their result, which fits and reports count."""
    evaluations: tuple[EvaluationCost, ...] = ()
    """Benchmarks that trials are asked, and what they take of the training time."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Trial id -> what its data state (workloads.data.corpus.FactCounts). Without trials whose data
    are no facts, and those that have their result and whose files are not read again."""
    notes: tuple[str, ...] = ()
    """Warnings: weak designs, unreadable trials, trials that other sweeps have trained,
    architectures that are not causal or whose code changed, remarks of data sources, excluded
    nodes."""
    code_notes: tuple[str, ...] = ()
    """Those of the notes about code that changed in this sweep, and counts with it. `submit` says
    them, too."""

    @property
    def left_over_notes(self) -> tuple[str, ...]:
        """What becomes of trials that left the file: a sentence, or none."""
        if not self.left_over:
            return ()
        there = plural(len(self.left_over), "trial")
        n_left = len(self.left_over) - self.n_left_over_done
        became = earlier_submissions.fates(self.n_left_over_done, n_left)
        return (f"not in this file: {there} of earlier submissions: {became}",)

    @property
    def readable(self) -> tuple[PlannedTrial, ...]:
        """The trials that a submission takes: all whose folders can be read."""
        return tuple(trial for trial in self.trials if trial.status != UNREADABLE)

    def predicted_s(self, *, slots: int = 1) -> float:
        """Return wall seconds with `slots` trials at a time, longest first onto the freest slot."""
        return _makespan([t.runtime.seconds * t.remaining for t in self._to_train], slots)

    def predicted_range_s(self, *, slots: int = 1) -> tuple[float, float]:
        """Return the smallest and largest wall seconds, as far as trials are guesses."""
        low, high = (
            _makespan(
                [t.runtime.seconds * t.runtime.factors[end] * t.remaining for t in self._to_train],
                slots,
            )
            for end in (0, 1)
        )
        return low, high

    @property
    def _to_train(self) -> list[PlannedTrial]:
        return [trial for trial in self.trials if trial.to_train]


def _makespan(seconds: Iterable[float], slots: int) -> float:
    ends = [0.0] * max(1, slots)
    for one in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += one
    return max(ends)


def make_plan(
    sweep: Sweep,
    snapshot: SweepSnapshot,
    measured: Sequence[Measurement],
    *,
    gpus_there: bool | None = None,
    nodes: Sequence[Node] = (),
) -> Plan:
    """Price every trial of `sweep` and say what submitting it would do.

    Args:
        sweep: As loaded; the trials' accounting is filled in here.
        snapshot: What is there of it already.
        measured: What trials on this machine took (`runtime_prior.measurements`).
        gpus_there: Whether there are GPUs where the trials would run; None: as on this machine.
        nodes: The cluster they would run on; none: not known, or this machine.
    """
    rate = None if any(m.device == "cpu" for m in measured) else matmul_flops_per_second()
    on_gpus = bool(visible_gpus()) if gpus_there is None else gpus_there
    if gpus_there is None and on_gpus:
        nodes = [local_node()]
    alive = liveness.is_alive(snapshot.path, snapshot.controller)
    known = [trial.spec for trial in snapshot.trials.values()]
    prices: dict[Hashable, dict[str, float]] = {}
    timed = StepSeconds(sweep.step_times.values())
    done: list[tuple[TrialSpec, Mapping[str, float]]] = []

    def plan_trial(spec: TrialSpec) -> PlannedTrial:
        on_gpu = on_gpus and spec.resources.gpus != 0
        counts = _account_once(spec, prices, on_gpu, nodes)
        record = snapshot.trials.get(spec.trial_id)
        if record is not None and record.state is TrialState.DONE:
            # Its counts are of the model that was trained, whatever the code is by now.
            done.append((record.spec, counts))
            counts = {**counts, **record.spec.accounting}
        spec = spec.with_accounting(counts)
        status, why, remaining = (
            (UNREADABLE, snapshot.unreadable[spec.trial_id], 0.0)
            if spec.trial_id in snapshot.unreadable
            else _compare(spec, record, known, alive=alive)
        )
        time = timed.predict(spec, sweep.matches.get(spec.trial_id), on_gpu=on_gpu)
        if time is None:
            time = predict_runtime(spec, measured, flops_per_second=rate, on_gpu=on_gpu)
        return PlannedTrial(spec=spec, status=status, why=why, runtime=time, remaining=remaining)

    planned = [plan_trial(spec) for spec in sweep.trials]
    planned, evaluations = _with_evaluations(planned, on_gpus=on_gpus)
    wanted = {t.spec.trial_id for t in planned}
    left_over = [spec for spec in known if spec.trial_id not in wanted]
    # Fits see no others: what is not done trains only if a file asks for it again.
    left_over_done = [
        spec for spec in left_over if snapshot.trials[spec.trial_id].state is TrialState.DONE
    ]
    to_train = any(t.to_train for t in planned)
    tokens_matched = {i for i, one in sweep.matches.items() if one.field == "tokens"}
    design = design_checks.notes(
        [t.spec for t in planned] + left_over_done if to_train else [],
        tokens_matched=tokens_matched,
        counterparts={
            trial_id: one.architecture
            for trial_id, one in sweep.matches.items()
            if one.architecture is not None
        },
    )
    code_notes = (
        *changed_code.notes(sweep.trials, snapshot, file_of=_file_of),
        *changed_code.count_notes(done),
    )
    return Plan(
        sweep=sweep,
        trials=tuple(planned),
        evaluations=tuple(evaluations),
        left_over=tuple(sorted(spec.trial_id for spec in left_over)),
        n_left_over_done=len(left_over_done),
        notes=(
            *design,
            *_set_aside(snapshot, wanted),
            *_done_elsewhere(snapshot.path, [t.spec for t in planned if t.to_train]),
            *_not_causal(sweep.trials),
            *_idle_gpus(t.spec for t in planned if t.to_train),
            *code_notes,
            *excluded(snapshot.excluded_nodes).values(),
        ),
        code_notes=code_notes,
        snapshot=snapshot,
    )


def _with_evaluations(
    trials: list[PlannedTrial], *, on_gpus: bool
) -> tuple[list[PlannedTrial], list[EvaluationCost]]:
    """Return trials that know which rows their benchmarks ask, and what these cost."""
    if all(trial.spec.evaluation is None for trial in trials):
        return trials, []
    specs, costs = evaluation_cost.with_schedule(
        [
            PricedTraining(t.spec, t.runtime.seconds, on_gpus and t.spec.resources.gpus != 0)
            for t in trials
        ]
    )
    return [replace(t, spec=spec) for t, spec in zip(trials, specs, strict=True)], costs


def _file_of(architecture: str) -> Path:
    return Path(str(registry.architecture(architecture).__file__))


def _set_aside(snapshot: SweepSnapshot, wanted: Collection[str]) -> list[str]:
    """Return a sentence for each trial on disk that cannot be read and is not in the file."""
    return [
        f"{why}; this trial, which the file does not ask for, is set aside"
        for trial_id, why in snapshot.unreadable.items()
        if trial_id not in wanted
    ]


def _done_elsewhere(sweep: Path, to_train: Sequence[TrialSpec]) -> list[str]:
    """Return a sentence for each sweep beside this one that has results of trials to train."""
    found, wanted = [], {spec.trial_id: spec for spec in to_train}
    for trials in sorted(sweep.parent.glob("*/trials")):
        if trials.parent == sweep or not wanted:
            continue
        try:
            # One listing is cheaper than asking for each trial.
            there = wanted.keys() & {folder.name for folder in trials.iterdir()}
            done = sorted(i for i in there if (trials / i / "result.json").exists())
        except OSError:  # whatever lies there, it keeps no other sweep from being planned
            continue
        if done:
            n = len(done)
            found.append(
                f"{n} of the {plural(len(wanted), 'trial')} to train "
                f"{'is' if n == 1 else 'are'} done in the sweep {trials.parent.name}"
                f"{_other_code(SweepDir(trials.parent), [wanted[i] for i in done])}; "
                f"this sweep trains {'it' if n == 1 else 'them'} anew"
            )
    return found


def _other_code(sweep: SweepDir, done: Sequence[TrialSpec]) -> str:
    """Return a clause on trials that another sweep has done with other code; empty if none are."""
    try:
        there = sweep.snapshot(spec.trial_id for spec in done)
    except (OSError, StoreError):  # as above
        return ""
    files = changed_code.of_other_code(done, there, file_of=_file_of)
    text = ", ".join(f"{n} by other code of {ARCHITECTURES / name}.py" for name, n in files.items())
    return f" ({text})" if text else ""


def recorded(sweep: SweepDir, measured: Sequence[Measurement]) -> tuple[PlannedTrial, ...]:
    """Return the trials of a sweep as submitted, with what is left of each; needs no architecture.

    A trial that cannot be read is not among them; `analysis.load` reports it.

    Args:
        sweep: Folder of the sweep.
        measured: What trials on this machine took (`runtime_prior.measurements`).
    """
    alive = liveness.is_alive(sweep.path, sweep.controller())
    on_gpu = bool(measured) and all(m.device != "cpu" for m in measured)
    found = []
    for folder in sweep.trials():
        try:
            trial = folder.record()
            spec = trial.spec
            status, why, remaining = _compare(spec, trial, (), alive=alive)
            price = predict_runtime(spec, measured, flops_per_second=None, on_gpu=on_gpu)
        except (StoreError, KeyError, TypeError, ValueError):
            continue  # unreadable, or of a version without these counts
        found.append(
            PlannedTrial(spec=spec, status=status, why=why, runtime=price, remaining=remaining)
        )
    return tuple(found)


def _not_causal(specs: Sequence[TrialSpec]) -> tuple[str, ...]:
    """Return one note per architecture and reason why it is not causal, with its trials."""
    trials = Counter(spec.architecture for spec in specs)
    counts = Counter((spec.architecture, spec.not_causal) for spec in specs if spec.not_causal)
    return tuple(
        f"{name}{'' if n == trials[name] else f' ({n} of {trials[name]} trials)'}: not causal {why}"
        for (name, why), n in counts.items()
    )


def _idle_gpus(specs: Iterable[TrialSpec]) -> tuple[str, ...]:
    """Return one note per number of GPUs that is more than a trial's ranks use."""
    more = dict.fromkeys(
        (spec.resources.ranks, int(spec.resources.gpus))
        for spec in specs
        if not isinstance(spec.resources.gpus, str) and spec.resources.gpus > spec.resources.ranks
    )
    return tuple(
        f"resources.gpus is {gpus} and resources.ranks {ranks}: a rank computes on one GPU, so "
        f"{plural(gpus - ranks, 'GPU')} of a trial would idle; set ranks to {gpus}, or gpus "
        f"to {ranks}"
        for ranks, gpus in more
    )


def account(
    spec: TrialSpec, *, on_gpu: bool = False, gpu_bytes: float | None = None
) -> dict[str, float]:
    """Return every number of docs/metrics.md, "Accounting", for one trial.

    Args:
        spec: Of the trial.
        on_gpu: Whether it would run on GPUs.
        gpu_bytes: Memory of each of them, by which ranks choose their micro-batch; None: not known.
    """
    model = {key: value for key, value in spec.model.items() if key != "architecture"}
    config = registry.build_config(registry.architecture(spec.architecture).Config, model)
    data = {key: value for key, value in spec.data.items() if key != "source"}
    source = registry.build_config(registry.data_source(str(spec.data["source"])).Config, data)
    train = registry.build_config(registry.train_config(), spec.train)
    vocab_size = int(source.vocab_size)
    params = config.param_count(vocab_size)
    per_group = params.as_dict()
    forward = config.flops_per_token(vocab_size, train.seq_len).total
    tokens = train.steps * train.batch_tokens
    memory = _memory(
        partial(
            registry.training_memory().training_memory,
            config,
            vocab_size,
            train,
            precision=_precision(train, on_gpu=on_gpu),
            ranks=spec.resources.ranks,
            memory_ranks=spec.resources.memory_ranks,
            memory_layout=spec.resources.memory_layout,
            tables_on_host=_outside(spec.resources),
            dense_sharded=spec.resources.dense_parameters == "sharded",
        ),
        spec.resources,
        train,
        gpu_bytes=gpu_bytes if on_gpu else None,
    )
    by_paper = block_flops(spec)
    return {
        **{f"params_{group}": float(n) for group, n in per_group.items()},
        "total_params": float(params.total),
        "non_embedding_params": float(params.non_embedding),
        "memory_params": float(per_group["memory_keys"] + per_group["memory_values"]),
        "active_params": float(config.active_param_count(vocab_size)),
        "forward_flops_per_token": float(forward),
        "training_flops": float(registry.accounting().training_flops(forward, tokens)),
        "training_tokens": float(tokens),
        "steps": float(train.steps),
        "bytes_read_per_token": _bytes_read(config, vocab_size, batch_tokens=1),
        f"bytes_read_per_token_batch{BATCH}": _bytes_read(config, vocab_size, batch_tokens=BATCH),
        "model_state_bytes": float(memory.model_state),
        "activation_bytes": float(memory.activations),
        "peak_memory_bytes": float(memory.peak),
        "vocab_size": float(vocab_size),
        **({} if by_paper is None else {"paper_block_flops": by_paper}),
    }


def _memory(
    estimate: Callable[..., Any], resources: Resources, train: Any, *, gpu_bytes: float | None
) -> Any:
    """Return the memory of a rank with a micro-batch that fits where the scheduler would put it.

    On the GPU itself a rank knows more and may choose a larger one.
    """
    per_rank = -(-train.batch_tokens // resources.ranks)
    micro = min(resources.micro_batch_tokens or per_rank, per_rank)
    checkpointing = resources.activation_checkpointing
    if gpu_bytes is not None:
        passes = registry.micro_batch().fitting_passes(
            estimate,
            sequences=-(-train.sequences_per_step // resources.ranks),
            seq_len=train.seq_len,
            limit_bytes=_limit_bytes(resources, gpu_bytes),
            micro_batch_tokens=resources.micro_batch_tokens,
            checkpointing=checkpointing,
        )
        micro = min(passes.rows * train.seq_len, per_rank)
        checkpointing = passes.activation_checkpointing
    return estimate(micro_batch_tokens=micro, activation_checkpointing=checkpointing is True)


def _bytes_read(config: Any, vocab_size: int, *, batch_tokens: int) -> float:
    """Return the bytes of parameters read per token when that many are decoded at once, bf16."""
    return float(sum(config.bytes_per_token(vocab_size, batch_tokens=batch_tokens).values()))


def _outside(resources: Resources) -> bool:
    """Whether tables take no memory of the device: of a CPU it is the host's."""
    return resources.memory_tables == "host" and resources.gpus != 0


def _precision(train: Any, *, on_gpu: bool) -> str:
    """Return what memory is estimated for: `auto` as GPUs with bf16 units choose, or a CPU."""
    auto = "bf16" if on_gpu else "fp32"
    return auto if train.precision == "auto" else str(train.precision)


def _account_on(spec: TrialSpec, nodes: Sequence[Node]) -> dict[str, float]:
    """Price a trial on GPUs, with passes that fit the smallest of them that can hold it.

    On whole GPUs ranks choose their passes where they are, so the trial may run on any GPU that
    takes it in more passes. A share of a GPU is counted on the largest GPUs.
    """
    if nodes:
        spec = replace(spec, resources=with_gpu_count(spec.resources, nodes))
    known = {node.gpu_memory_bytes for node in nodes if node.gpus and node.gpu_memory_bytes}
    sizes: list[float | None] = [*sorted(known)] or [None]
    gpus = spec.resources.gpus
    if not isinstance(gpus, str) and gpus < 1:
        sizes = sizes[-1:]
    for size in sizes:
        priced = account(spec, on_gpu=True, gpu_bytes=size)
        if size is None or priced["peak_memory_bytes"] <= _limit_bytes(spec.resources, size):
            break
    return priced


def _limit_bytes(resources: Resources, gpu_bytes: float) -> float:
    """Return the largest peak of a rank that GPUs of so much memory hold."""
    gpus = float(resources.ranks if isinstance(resources.gpus, str) else resources.gpus)
    return largest_peak(gpu_bytes, ranks=ranks_per_gpu(resources.ranks, gpus))


def _account_once(
    spec: TrialSpec,
    prices: dict[Hashable, dict[str, float]],
    on_gpu: bool,
    nodes: Sequence[Node],
) -> dict[str, float]:
    """Price a trial; its seeds and other rates cost the same, so they are priced once."""
    key = (spec.configuration_id, spec.resources, on_gpu)
    if key not in prices:
        train = {name: value for name, value in spec.train.items() if name not in RATES}
        shape = (canonical_json((spec.data, spec.model, train)), spec.resources, on_gpu)
        if shape not in prices:
            prices[shape] = _account_on(spec, nodes) if on_gpu else account(spec)
        prices[key] = prices[shape]
    return prices[key]


def _compare(
    spec: TrialSpec, trial: TrialRecord | None, known: Sequence[TrialSpec], *, alive: bool
) -> tuple[str, str, float]:
    """Return status, reason and the share of the training that is left."""
    if trial is None:
        return "new", why_new(spec, known), 1.0
    state = trial.state
    if state is TrialState.DONE:
        return "done", "has its result", 0.0
    steps = int(spec.accounting["steps"])
    heartbeat = trial.heartbeat or {}
    running = state is TrialState.RUNNING and alive
    step = int(heartbeat.get("step") or 0) if running else trial.checkpoint_step
    left = 1.0 - min(1.0, step / steps) if steps else 1.0
    if running:
        return "running", f"at step {step:,} of {steps:,}", left
    reason = str(trial.last_end["reason"]) if trial.last_end else "its controller ended"
    if state is TrialState.FAILED:
        return "retry", f"failed before: {reason}", left
    if state is TrialState.CANCELLED:
        return "cancelled", "was cancelled; submitting it again resumes it", left
    if trial.attempts:
        return "resume", f"goes on after step {step:,} of {steps:,}: {reason}", left
    return "waiting", "was submitted and has not started", 1.0


def why_new(spec: TrialSpec, known: Sequence[TrialSpec]) -> str:
    """Return what distinguishes a trial from the most similar one on disk."""
    if not known:
        return "nothing was submitted under this name yet"
    same = [other for other in known if other.architecture == spec.architecture]
    if not same:
        return f"no trial of architecture {spec.architecture} yet"
    identity = spec.identity()
    differences = [
        identity_difference(other.identity(), identity) for other in same[:MOST_COMPARED]
    ]
    # Among equally near ones that of the lowest seed, so that trials of one new seed say the same.
    nearest = min(range(len(differences)), key=lambda i: (len(differences[i]), same[i].seed))
    phrases = differences[nearest]
    before = same[nearest].recipe
    if spec.recipe != before:
        phrases = [f"train.recipe {before or 'unset'} → {spec.recipe or 'unset'}", *phrases]
    return ", ".join(phrases)

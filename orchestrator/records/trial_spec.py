"""The records of a trial and of its attempts: frozen dataclasses of plain values.

A trial is named by the hash of what decides its result (`TrialSpec.identity`): data, model, train,
seed and the schema version. Placement, retries and logging are left out, so changing them trains
nothing anew.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

from workloads.field_error import (
    FieldError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_fields,
)

SCHEMA_VERSION = 1
"""Part of every trial's identity. Raised when a field changes its meaning, so that old results are
not mistaken for new. A record of an older version is read, and keeps its id. One of a newer version
is set aside."""


COUNTS_OF_A_CONFIGURATION = ("total_params", "active_params", "training_flops")
"""Numbers of the accounting that curves are drawn over. All seeds of a configuration have the same
if the same code counted them."""
GPU_PEAK = "system/gpu_peak_bytes"
"""Metric of a result: peak memory that torch held on a rank's GPU. Later trials of the
configuration are packed by it."""

RSS_PEAK = "system/rss_peak_bytes"
"""Metric of a result: peak resident memory of rank 0's process."""


class TrialState(StrEnum):
    """State of a trial. Derived from its directory, never stored."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How one attempt ended; `orchestrator/control/retry_policy.py` says what follows."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    """Asked to stop (Ctrl-C, cancel): checkpointed and left."""
    USER_ERROR = "user_error"
    GPU_OOM = "gpu_oom"
    GPU_FAULT = "gpu_fault"
    """CUDA stopped all programs that shared a GPU, for an error of one of them."""
    HOST_OOM = "host_oom"
    DIVERGED = "diverged"
    HANG = "hang"
    COMMUNICATION = "communication"
    PREEMPTED = "preempted"
    YIELDED = "yielded"
    """Made way for a sweep of higher priority on its cluster; goes on when that leaves room."""
    KILLED = "killed"
    """A rank died of a signal that nobody here sent."""
    NODE_LOST = "node_lost"
    """Its node's supervisor or the controller is gone, and the ranks with it; or a device broke."""
    TIME_LIMIT = "time_limit"
    DISK_FULL = "disk_full"
    STORAGE = "storage"
    """The storage of the trial's files, or of its data, failed or did not answer."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one trial asks of the cluster. Not part of its identity."""

    gpus: float | str = "auto"
    """`auto`, 0, a fraction, or a whole number. `auto` is one GPU where there is one, else none."""
    cpus: PositiveInt = 1
    """Cores per rank; also the number of torch threads of a rank."""
    ranks: PositiveInt = 1
    """Processes of one trial (torch.distributed), each with `cpus` cores and a share of `gpus`."""
    micro_batch_tokens: PositiveInt | None = None
    """Tokens per forward pass and rank. None: the whole share of a rank, or what of it fits a GPU
    by the memory estimate."""
    activation_checkpointing: bool | None = None
    """Keep the inputs of blocks alone and run them again for the backward pass: less memory, a
    third more FLOPs. None: on a GPU, where not even one sequence fits without."""
    memory_ranks: int = 1
    """Neighbouring ranks that together hold one copy of the memory tables; divides `ranks`.
    1: every rank holds all."""
    memory_layout: Literal["columns", "rows"] = "columns"
    """What each of them holds: some columns of all rows, or some rows."""
    memory_tables: Literal["device", "host"] = "device"
    """Where memory tables and their optimizer state lie: with the model, or in host memory."""
    dense_parameters: Literal["replicated", "sharded"] = "replicated"
    """Whether every rank holds all parameters but the tables, or a shard of them."""
    compile: bool = True
    """Compile and capture training steps where they run on a GPU; `off` for debugging."""
    time_limit_s: PositiveFloat | None = None
    """Wall-clock limit of one attempt."""
    hang_after_s: PositiveFloat | None = None
    """Seconds without progress after which an attempt counts as hung, if 20 steps are not longer.
    None: 300 between two steps, 1800 before the first, in evaluations and checkpoints
    (`orchestrator/node/hang_detection.py`)."""

    def __post_init__(self) -> None:
        check_fields(self)
        gpus = self.gpus
        if isinstance(gpus, str):
            if gpus != "auto":
                raise FieldError("gpus", "must be auto or a number >= 0", repr(gpus))
        elif gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise FieldError("gpus", "must be a fraction of one GPU or a whole number", gpus)
        if self.memory_ranks < 1 or self.ranks % self.memory_ranks:
            most = max(1, min(self.memory_ranks, self.ranks))
            nearest = next(n for n in range(most, 0, -1) if self.ranks % n == 0)
            rule, fix = f"must divide ranks ({self.ranks})", f"the nearest is {nearest}"
            raise FieldError("memory_ranks", rule, self.memory_ranks, fix, ("ranks",))
        if self.memory_tables == "host" and self.memory_ranks > 1:
            got = f"memory_ranks {self.memory_ranks}"
            fix = "set memory_ranks to 1"
            raise FieldError(
                "memory_tables", ": host holds whole tables", got, fix, ("memory_ranks",)
            )


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Attempts allowed beyond the first, per budget."""

    failure: NonNegativeInt = 1
    """Errors that the trial itself may have caused."""
    preemption: NonNegativeInt = 100
    """Attempts taken away from outside: preemption, a killed process, a lost node."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Logging:
    """How often a trial writes. Not part of its identity: none of it changes the weights."""

    every_steps: PositiveInt = 10
    """Steps between training metrics."""
    evaluations: PositiveInt = 4
    """Evaluations over the run, evenly spaced, the last one after the last step."""
    checkpoint_every_s: NonNegativeFloat = 30.0
    """Seconds between checkpoints."""
    usage_every_steps: PositiveInt | None = None
    """Steps between reports of how memories and experts are used; None: at each evaluation."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class EvaluationSchedule:
    """Which benchmarks are asked, and when. Not part of a trial's identity: no weight changes."""

    suites: tuple[str, ...] = ()
    """Names of bundled suites, or YAML files."""
    questions: str | None = None
    """File of questions with short answers (`workloads/evaluation/questions.py`)."""
    at: tuple[float, ...] = (1.0,)
    """Shares of the training after which these are asked; 1 is its end."""
    data: str | None = None
    """Folder of the suites' files; None: the one that MEMSCALE_BENCHMARKS names at submission."""
    rows: PositiveInt | None = None
    """Rows of each task, the first ones; None: as many as take a small share of the training
    (`orchestrator/planning/evaluation_cost.py`)."""
    most_share: PositiveFloat | None = None
    """Of the training's time, after which evaluations during training stop. None: 0.05 where the
    rows are chosen by planning, else no limit."""
    skipped: str | None = field(default=None, metadata={"planned": True})
    """Why planning leaves it out of a training that is too short for it; None: it does not. No
    sweep file writes it."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.suites and self.questions is None:
            rule = "must name at least one suite, unless there are questions"
            raise FieldError("suites", rule, repr(list(self.suites)))
        if not self.at or not all(0 < share <= 1 for share in self.at):
            rule = "must be shares of the training, above 0 and up to 1"
            raise FieldError("at", rule, list(self.at), "write for example [0.5, 1.0]")

    def steps(self, steps: int) -> frozenset[int]:
        """Return the optimizer steps, of `steps` in all, after which the suites are asked."""
        return frozenset(max(1, math.ceil(share * steps)) for share in self.at)


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a plain value: sorted keys, no spaces, None-valued keys left out.

    Leaving None out lets a later version add an optional field without renaming every old trial.
    A float equal to an integer is written as that integer: 3.0e-3 stays, 100000.0 equals 100_000.

    Raises:
        ValueError: For anything without one stable form (objects, NaN, infinities, non-text keys).
    """
    return _encode(_canonical(value, ("value",)))


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
"""As `json.dumps`, which would make an encoder for each of ten thousand trials."""


def _canonical(value: Any, where: tuple[Any, ...]) -> Any:
    """Return `value` in its one form.

    `where` is (outer where, key); only an error puts it into words, for plans have millions of
    values.
    """
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"{_path(where)}: {value} has no canonical form; write a finite number"
            )
        return int(value) if value == int(value) else value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{_path(where)}: keys must be text, got {key!r}")
        return {k: _canonical(v, (where, k)) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_canonical(v, (where, i)) for i, v in enumerate(value)]
    if isinstance(value, bool | str | int):
        return value
    raise ValueError(
        f"{_path(where)}: {type(value).__name__} has no canonical form; "
        "use text, numbers, lists or mappings"
    )


_AS_THEY_ARE = frozenset((type(None), bool, str, int))


def _path(where: tuple[Any, ...]) -> str:
    if len(where) == 1:
        return str(where[0])
    outer, key = where
    return _path(outer) + (f"[{key}]" if isinstance(key, int) else f".{key}")


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial: everything needed to train it, with every default written out."""

    sweep: str
    data: Mapping[str, Any]
    """`source` and every field of that source's Config."""
    model: Mapping[str, Any]
    """`architecture` and every field of that architecture's Config; presets are expanded."""
    train: Mapping[str, Any]
    """Every field of workloads.training.config.TrainConfig."""
    seed: int
    data_sha256: Mapping[str, str] = field(default_factory=dict)
    """Content hash per data field that names a file. It replaces the path in the identity, so
    moving a file trains nothing."""
    preset: str | None = None
    """The preset as written, for tables and figures."""
    recipe: str | None = None
    """The recipe as written, not in the identity: `train` holds what it stands for."""
    origin: str = ""
    """Which entry of the sweep file made it, for people: `trials[1].grid, seed 0`."""
    resources: Resources = field(default_factory=Resources)
    retries: Retries = field(default_factory=Retries)
    logging: Logging = field(default_factory=Logging)
    evaluation: EvaluationSchedule | None = None
    """Benchmarks of the sweep, with an absolute folder and a number of rows once it is priced."""
    accounting: Mapping[str, float] = field(default_factory=dict)
    """Names and units: docs/metrics.md, "Accounting". Derived, so not in the identity."""
    schema: int = SCHEMA_VERSION
    """Version of the fields above, as of the memscale that wrote them."""
    not_causal: str | None = None
    """When and why an output can depend on later tokens, as the architecture declares it:
    `in training: experts choose among all tokens of the batch`. Derived from the rest, so not in
    the identity."""
    match: Mapping[str, str] | None = None
    """What `match` held equal, as a sweep file says it: `{training_flops: pythia, solve: tokens}`.
    What it solved for is in `train` or `model`, so this is not in the identity."""
    from_pretrained: str | None = None
    """Folder with the trained model that training starts from."""
    from_pretrained_sha256: str | None = None
    """Its content hash, which replaces the path in the identity."""

    @property
    def architecture(self) -> str:
        """Name of the architecture in YAML."""
        return str(self.model["architecture"])

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        tokens = self.train.get("stop_at_tokens") or self.train["tokens"]
        return -(-int(tokens) // int(self.train["batch_tokens"]))

    def identity(self) -> dict[str, Any]:
        """Return what decides the result, and nothing else."""
        data = {key: value for key, value in self.data.items() if key not in self.data_sha256}
        digest = self.from_pretrained_sha256
        start = {} if digest is None else {"from_pretrained_sha256": digest}
        return {
            "schema": self.schema,
            "data": {
                **data,
                **{f"{key}_sha256": digest for key, digest in self.data_sha256.items()},
            },
            "model": {**self.model, **start},
            "train": dict(self.train),
            "seed": self.seed,
        }

    @cached_property
    def trial_id(self) -> str:
        """`<architecture>-<12 hex digits>` of the canonical identity."""
        return self._ids([self.seed])[0]

    @cached_property
    def configuration_id(self) -> str:
        """The trial's id if its seed were 0, which trials share that differ in the seed alone."""
        return self._ids([0])[0]

    def _ids(self, seeds: Sequence[int]) -> list[str]:
        """Return the ids with these seeds; what all share is written once."""
        identity = self.identity()
        before = canonical_json({key: part for key, part in identity.items() if key < "seed"})
        after = canonical_json({key: part for key, part in identity.items() if key > "seed"})
        texts = (f'{before[:-1]},"seed":{canonical_json(seed)},{after[1:]}' for seed in seeds)
        digests = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
        return [f"{self.architecture}-{digest[:12]}" for digest in digests]

    def with_seeds(self, seeds: Sequence[int], *, origin: str) -> list["TrialSpec"]:
        """Return the trial with each seed, which its origin names."""
        configuration_id, *trial_ids = self._ids([0, *seeds])
        return [
            _copy(
                self,
                seed=seed,
                origin=f"{origin}, seed {seed}",
                trial_id=trial_id,
                configuration_id=configuration_id,
            )
            for seed, trial_id in zip(seeds, trial_ids, strict=True)
        ]

    def with_accounting(self, accounting: Mapping[str, float]) -> "TrialSpec":
        """Return the trial with its accounting, which is not part of its identity."""
        return self._with_equal_ids(accounting=accounting)

    def with_evaluation(self, evaluation: EvaluationSchedule) -> "TrialSpec":
        """Return the trial with its benchmarks, which are not part of its identity."""
        return self._with_equal_ids(evaluation=evaluation)

    def _with_equal_ids(self, **changes: Any) -> "TrialSpec":
        ids = {"trial_id": self.trial_id, "configuration_id": self.configuration_id}
        return _copy(self, **changes, **ids)

    def to_json(self) -> dict[str, Any]:
        """Return the content of spec.json; it shares the trial's mappings."""
        record = {name: getattr(self, name) for name in _FIELD_NAMES}
        # Of scalars alone, so that none needs the deep copies of `asdict`: 0.4 core seconds for ten
        # thousand specs.
        parts = {
            name: {key: getattr(getattr(self, name), key) for key in keys}
            for name, keys in _SCALAR_PARTS.items()
        }
        if self.evaluation is not None:
            parts["evaluation"] = asdict(self.evaluation)
        return {"trial_id": self.trial_id, **record, **parts}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "TrialSpec":
        """Read what `to_json` wrote, now or in an older version.

        Raises:
            ValueError: If a newer version wrote it, or the stored id is not the hash of the stored
                content.
        """
        record = {"schema": 1, **record}  # older records do not say it
        if isinstance(record["schema"], int) and record["schema"] > SCHEMA_VERSION:
            raise ValueError(
                f"a newer memscale wrote it (schema {record['schema']}, this one reads up to "
                f"{SCHEMA_VERSION}); update memscale"
            )
        parts: dict[str, Any] = {"resources": Resources, "retries": Retries, "logging": Logging}
        fields = _known(record, cls, ("trial_id",))
        stored_id = fields.pop("trial_id")
        if fields.get("evaluation") is not None:
            parts["evaluation"] = EvaluationSchedule
        built = {name: _part(fields[name], part) for name, part in parts.items()}
        spec = cls(**{**fields, **built})
        _check_beside_identity(spec)
        if spec.trial_id != stored_id:
            raise ValueError(
                f"spec.json says {stored_id}, its content hashes to {spec.trial_id}; "
                "restore or delete it"
            )
        return spec


_FIELD_NAMES = tuple(field.name for field in dataclasses.fields(TrialSpec))
_SCALAR_PARTS = {
    name: tuple(field.name for field in dataclasses.fields(part))
    for name, part in (("resources", Resources), ("retries", Retries), ("logging", Logging))
}


def _copy(spec: TrialSpec, **changes: Any) -> TrialSpec:
    """Return a spec with other fields, and with ids that are known: to hash them takes seconds.

    A tenth of `replace`'s time, which passes every field through `__init__`; nothing is checked.
    """
    copied = object.__new__(TrialSpec)
    vars(copied).update(vars(spec), **changes)
    return copied


def _check_beside_identity(spec: TrialSpec) -> None:
    """Raise ValueError if a field that the trial's id does not protect is of another kind."""
    for name in ("sweep", "origin", "preset", "recipe", "not_causal", "from_pretrained"):
        value = getattr(spec, name)
        if not isinstance(value, str) and (value is not None or name in ("sweep", "origin")):
            raise ValueError(f"{name}: expected text, got {str(value)[:60]!r}; restore the file")
    values: tuple[tuple[str, Any, Any], ...] = (
        ("accounting", spec.accounting, int | float),
        ("match", {} if spec.match is None else spec.match, str),
        ("data_sha256", spec.data_sha256, str),
    )
    for name, value, kind in values:
        if not isinstance(value, Mapping) or not all(isinstance(v, kind) for v in value.values()):
            what = "texts" if kind is str else "numbers"
            raise ValueError(
                f"{name}: expected an object of {what}, got {str(value)[:60]!r}; restore the file"
            )


def _part(record: Mapping[str, Any], cls: Any) -> Any:
    """Return a part of a spec; lists of JSON become tuples."""
    fields = _known(record, cls)
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def _known(record: Mapping[str, Any], cls: Any, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a record, all of which this version knows.

    Raises:
        ValueError: If it does not know one: to leave it out could change what the trial is.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"expected the fields of {cls.__name__}, got {str(record)[:60]!r}")
    unknown = sorted(set(record) - {field.name for field in dataclasses.fields(cls)} - set(also))
    if unknown:
        raise ValueError(
            f"unknown field {', '.join(unknown)}: a newer memscale wrote it, or it was altered; "
            "update memscale, or restore the file"
        )
    return dict(record)


def identity_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Return one phrase per leaf that differs: `train.lr 0.003 → 0.001`, in key order."""
    phrases: list[str] = []
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        name = f"{prefix}{key}"
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            phrases += identity_difference(before, after, f"{name}.")
        elif before != after:
            phrases.append(f"{name} {_show(before)} → {_show(after)}")
    return phrases


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)

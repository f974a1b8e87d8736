"""Training configuration: the `train:` section of a sweep file.

It holds everything about optimisation that decides a trial's result.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from workloads.field_error import (
    FieldError,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Share,
    check_fields,
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how a model is trained."""

    tokens: PositiveInt
    """Tokens in the whole run, and of the schedule; rounded up to whole optimizer steps."""
    batch_tokens: PositiveInt
    """Tokens per optimizer step over all ranks; a multiple of seq_len."""
    seq_len: PositiveInt
    """Tokens per sequence."""
    lr: PositiveFloat
    """Peak learning rate."""
    stop_at_tokens: PositiveInt | None = None
    """Tokens after which the run ends; None is `tokens`, over which the schedule stretches."""
    schedule: Literal["cosine", "wsd", "constant", "linear"] = "cosine"
    """wsd: warm-up, stable, linear decay over the last `decay_fraction`. linear: one straight line
    after warm-up."""
    warmup_fraction: Share = 0.02
    """Share of the steps spent raising the learning rate linearly from zero."""
    decay_fraction: Share = 0.2
    """Share of the steps in which wsd decays; other schedules ignore it."""
    final_lr_fraction: Share = 0.1
    """Learning rate at the last step over the peak."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled, on matrices only (no norms, biases or embeddings)."""
    value_lr_ratio: NonNegativeFloat = 1.0
    """Learning rate of memory values over `lr`; 0 leaves them as they begin. Papers use 4 to 10
    (docs/decisions/0008)."""
    value_lr_final_ratio: PositiveFloat | None = None
    """What `value_lr_ratio` falls to, in a straight line; None keeps it as it is. UltraMem: from 10
    to 1."""
    value_lr_decay_fraction: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Share of the steps in which it falls; None is all of them. Only with
    `value_lr_final_ratio`."""
    value_weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay on memory values."""
    table_optimizer: Literal["adamw", "deferred_adamw", "lazy_adamw", "rowwise", "sgd"] = "adamw"
    """How memory values are updated. adamw: as everything else, from a gradient as large as the
    table. The others make one update a step from the reads alone
    (`workloads/training/optimizer/table_optimizer.py`): deferred_adamw the same, lazy_adamw for the
    rows that were read, rowwise with one second moment per row and no first, sgd with none."""
    table_clip: Literal["exact", "previous"] = "exact"
    """Norm that memory values are clipped by: this step's, or the step before's, which costs no
    pass of its own. Only exact with adamw."""
    table_precision: Literal["fp32", "bf16", "bf16_master"] = "fp32"
    """What memory values are stored in; only fp32 with adamw. bf16: they and their moments, rounded
    stochastically. bf16_master: models read bf16, and what each number is off by is kept beside it
    (`kernels/table_update/split_master.py`), so that updates are those of fp32 tables, whose
    moments and memory these have too."""
    table_moments: Literal["int8"] | None = None
    """Only null: int8 was removed (docs/decisions/0001-no-int8-moments.md). Recorded trials name
    the field, so it stays."""
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Interval(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1.0e-8
    grad_clip: PositiveFloat | None = 1.0
    """Largest gradient norm; memory values and the rest are clipped separately."""
    clip_values: Literal["together", "apart"] | None = None
    """together: clip memory values and the rest by the norm of both. Only with adamw. Null is
    apart, and apart becomes null."""
    document_mask: Literal[True] | None = None
    """Attention stays within documents, where windows hold several; None lets it cross them. For
    sources of text, and architectures whose positions meet in softmax attention alone."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 autocast on a GPU that has it, fp32 elsewhere."""

    def __post_init__(self) -> None:
        if self.clip_values == "apart":
            # What trials were named by before it could be written.
            object.__setattr__(self, "clip_values", None)
        check_fields(self)
        if self.batch_tokens % self.seq_len:
            rule = f"must be a multiple of seq_len ({self.seq_len})"
            raise FieldError("batch_tokens", rule, self.batch_tokens, others=("seq_len",))
        if self.tokens < self.batch_tokens:
            rule = f"must be at least batch_tokens ({self.batch_tokens})"
            raise FieldError("tokens", rule, self.tokens, others=("batch_tokens",))
        stop = self.stop_at_tokens
        if stop is not None and not self.batch_tokens <= stop < self.tokens:
            rule = f"must be at least batch_tokens ({self.batch_tokens}) and below tokens"
            fix = f"tokens ({self.tokens}) is the schedule's length, where a run ends anyway"
            raise FieldError("stop_at_tokens", rule, stop, fix, ("tokens", "batch_tokens"))
        fraction = self.value_lr_decay_fraction
        if fraction is not None and self.value_lr_final_ratio is None:
            rule = "does nothing without value_lr_final_ratio"
            fix = "write value_lr_final_ratio: 1.0, or remove it"
            others = ("value_lr_final_ratio",)
            raise FieldError("value_lr_decay_fraction", rule, fraction, fix, others)
        self._check_tables()

    def _check_tables(self) -> None:
        if self.table_optimizer == "adamw":
            for name, only in (("table_clip", "exact"), ("table_precision", "fp32")):
                value = getattr(self, name)
                if value != only:
                    rule = f"must be {only} with table_optimizer adamw"
                    fix = "choose another table_optimizer, deferred_adamw makes the same steps"
                    raise FieldError(name, rule, value, fix, ("table_optimizer",))
        elif self.clip_values == "together":
            rule = "must be apart where tables have an optimizer of their own"
            got = f"together with table_optimizer {self.table_optimizer}"
            fix = "remove it, or set table_optimizer to adamw"
            raise FieldError("clip_values", rule, got, fix, ("table_optimizer",))
        if self.table_moments is not None:
            removed = "int8 was removed (docs/decisions/0001-no-int8-moments.md)"
            fix = (
                "remove table_moments, and to save memory set table_precision: bf16, "
                "which halves table and moments"
            )
            got = f"{self.table_moments}: {removed}"
            raise FieldError("table_moments", "must be null", got, fix, ("table_precision",))

    @property
    def steps(self) -> int:
        """Optimizer steps that are taken: `tokens / batch_tokens`, rounded up, or fewer."""
        return -(-(self.stop_at_tokens or self.tokens) // self.batch_tokens)

    @property
    def schedule_steps(self) -> int:
        """Optimizer steps of the whole schedule: `tokens / batch_tokens`, rounded up."""
        return -(-self.tokens // self.batch_tokens)

    @property
    def sequences_per_step(self) -> int:
        """Sequences in one global batch."""
        return self.batch_tokens // self.seq_len

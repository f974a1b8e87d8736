"""The `train:` section of a sweep file: everything about optimisation that decides a trial's result."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how a model is trained."""

    tokens: int
    """Tokens in the whole run; rounded up to whole optimizer steps."""
    batch_tokens: int
    """Tokens per optimizer step over all ranks; a multiple of seq_len."""
    seq_len: int
    """Tokens per sequence."""
    lr: float
    """Peak learning rate."""
    schedule: Literal["cosine", "wsd", "constant", "linear"] = "cosine"
    """wsd: warm-up, stable, linear decay over the last `decay_fraction`. linear: one straight line after warm-up."""
    warmup_fraction: float = 0.02
    """Share of the steps spent raising the learning rate linearly from zero."""
    decay_fraction: float = 0.2
    """Share of the steps in which wsd decays; other schedules ignore it."""
    final_lr_fraction: float = 0.1
    """Learning rate at the last step over the peak."""
    weight_decay: float = 0.1
    """Decoupled, on matrices only (no norms, biases or embeddings)."""
    value_lr_ratio: float = 1.0
    """Learning rate of memory values over `lr`. Papers use 4 to 10 (docs/architecture.md)."""
    value_lr_final_ratio: float | None = None
    """What `value_lr_ratio` falls to, in a straight line; None keeps it as it is. UltraMem: from 10 to 1."""
    value_lr_decay_fraction: float | None = None
    """Share of the steps in which it falls; None is all of them. Only with `value_lr_final_ratio`."""
    value_weight_decay: float = 0.0
    """Decoupled weight decay on memory values."""
    table_optimizer: Literal["adamw", "deferred_adamw", "lazy_adamw", "rowwise", "sgd"] = "adamw"
    """How memory values are updated. adamw: as everything else, from a gradient as large as the table. The others make
    one update a step from the reads alone (`workloads/training/table_optimizer.py`): deferred_adamw the same, lazy_adamw for the rows
    that were read, rowwise with one second moment per row and no first, sgd with none."""
    table_clip: Literal["exact", "previous"] = "exact"
    """Norm that memory values are clipped by: this step's, or the step before's, which costs no pass of its own. Only
    exact with adamw."""
    table_precision: Literal["fp32", "bf16", "bf16_master"] = "fp32"
    """What memory values are stored in; only fp32 with adamw. bf16: they and their moments, rounded stochastically.
    bf16_master: models read bf16, and what each number is off by is kept beside it (`kernels/table_update/split_master.py`), so
    that updates are those of fp32 tables, whose moments and memory these have too."""
    table_moments: Literal["int8"] | None = None
    """Only null: int8 was removed (docs/decisions/0001-no-int8-moments.md). Recorded trials name
    the field, so it stays."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1.0e-8
    grad_clip: float | None = 1.0
    """Largest gradient norm; memory values and the rest are clipped separately."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 autocast on a GPU that has it, fp32 elsewhere."""

    def __post_init__(self) -> None:
        for name in ("tokens", "batch_tokens", "seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_tokens % self.seq_len:
            raise ValueError(
                f"batch_tokens must be a multiple of seq_len ({self.seq_len}), got {self.batch_tokens}"
            )
        if self.tokens < self.batch_tokens:
            raise ValueError(
                f"tokens must be at least batch_tokens ({self.batch_tokens}), got {self.tokens}"
            )
        for name in ("lr", "value_lr_ratio", "eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        self._check_value_lr()
        if self.table_optimizer == "adamw":
            for name, only in (("table_clip", "exact"), ("table_precision", "fp32")):
                if getattr(self, name) != only:
                    raise ValueError(
                        f"{name} must be {only} with table_optimizer adamw, got {getattr(self, name)}; "
                        "choose another table_optimizer, deferred_adamw makes the same steps"
                    )
        if self.table_moments is not None:
            raise ValueError(
                f"table_moments must be null, got {self.table_moments}: int8 was removed "
                "(docs/decisions/0001-no-int8-moments.md); remove table_moments, and to save "
                "memory set table_precision: bf16, which halves table and moments"
            )
        for name in ("weight_decay", "value_weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("warmup_fraction", "decay_fraction", "final_lr_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in 0..1, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.grad_clip is not None and not self.grad_clip > 0:
            raise ValueError(f"grad_clip must be positive or null, got {self.grad_clip}")

    def _check_value_lr(self) -> None:
        final, fraction = self.value_lr_final_ratio, self.value_lr_decay_fraction
        if final is not None and not final > 0:
            raise ValueError(f"value_lr_final_ratio must be positive or null, got {final}")
        if fraction is None:
            return
        if not 0 < fraction <= 1:
            raise ValueError(
                f"value_lr_decay_fraction must be above 0 and at most 1, got {fraction}"
            )
        if final is None:
            raise ValueError(
                f"value_lr_decay_fraction does nothing without value_lr_final_ratio, got {fraction}; "
                "write value_lr_final_ratio: 1.0, or remove it"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps: `tokens / batch_tokens`, rounded up."""
        return -(-self.tokens // self.batch_tokens)

    @property
    def sequences_per_step(self) -> int:
        """Sequences in one global batch."""
        return self.batch_tokens // self.seq_len

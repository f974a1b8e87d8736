"""Update rules of memory tables, and the state that each keeps per row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

Kind = Literal["adamw", "lazy_adamw", "rowwise", "sgd"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One step of one table.

    With g = coefficient * the row's sum, every rule begins `w <- (1 - lr weight_decay) w`.

    adamw: every row of the table, read or not (Loshchilov and Hutter 2019, as `torch.optim.AdamW`):
        m <- m + (1 - beta1) (g - m);  s <- beta2 s + (1 - beta2) g^2
        w <- w - lr / (1 - beta1^step) * m / (sqrt(s / (1 - beta2^step)) + eps)
    lazy_adamw: the same for rows that the step's bags name; the others keep weight and moments, as
        in `torch.optim.SparseAdam`. `step` counts the table's steps, not the row's.
    rowwise: rows that are named, with one second moment per row and no first: q <- mean of g^2 over
        the row, where q = 0; else beta2 q + (1 - beta2) * that mean w <- w - lr * g / (sqrt(q) +
        eps) AdamW with beta1 = 0 whose second moment is averaged over a row as row-wise Adagrad's
        is (Mudigere et al. 2022, arXiv 2104.05158). It begins with the row's first gradient instead
        of being corrected for a start at zero: a correction by `step` would let a row first read
        late move 1 / sqrt(1 - beta2) times too far.
    sgd: rows that are named, `w <- w - lr * g`.

    Bytes per row of width v, beside the table's own: moments have the table's type, so adamw and
    lazy_adamw keep 8 v in fp32 and 4 v in bf16; rowwise 4; sgd none. What is stored in bf16 is
    rounded stochastically (`stochastic_rounding.py`).

    A bf16 table with a master keeps `low` besides, 2 v: the other halves of fp32 values
    (`split_master.py`). Those, and moments of 8 v in fp32, are updated as an fp32 table's are, bit
    for bit given the same sums; the table itself is always the master's nearest bf16 numbers.
    """

    kind: Kind
    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    step: int
    """Steps of this table, this one included."""
    seed: int = 0
    table: int = 0
    """Number of the table in its model: seed, table and step name the random numbers of rounding.
    """
    origin: tuple[int, int] = (0, 0)
    """Row and column of the whole table at which the part that is updated begins: its random
    numbers are those there."""
    packed: Int32[Tensor, " words"] | None = field(default=None, compare=False, repr=False)
    """`pack` of this rule on the table's device, at an address that stays. A captured step finds
    the numbers of each replay there. None: kernels are given a copy."""

    def key(self, stream: int) -> int:
        """Return 31 bits that name the random numbers of a step for one tensor.

        0 the weights, 1 and 2 the moments.
        """
        words = [self.seed, self.table, self.step, stream]
        return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


PACKED_WORDS = 16
"""Of 4 bytes, of a packed rule: 64 bytes, so that each of several begins at a multiple of 16."""


def pack(rules: Sequence[Rule]) -> Int32[Tensor, "rules words"]:
    """Return what kernels compute with, in the host's memory: fp32 by their bits, then the keys.

    The numbers that change from step to step are among them, so a kernel is launched with the same
    arguments in every step, and can be captured.
    """
    numbers = torch.tensor(
        [
            (
                1 - rule.lr * rule.weight_decay,
                rule.lr / (1 - rule.beta1**rule.step) if "adamw" in rule.kind else rule.lr,
                1 - rule.beta1,
                rule.beta2,
                1 - rule.beta2,
                (1 - rule.beta2**rule.step) ** -0.5,
                rule.eps,
            )
            for rule in rules
        ],
        dtype=torch.float32,
    )
    keys = torch.tensor([[rule.key(stream) for stream in range(3)] for rule in rules])
    packed = torch.zeros(len(rules), PACKED_WORDS, dtype=torch.int32)
    packed[:, : numbers.shape[1]] = numbers.view(torch.int32)
    packed[:, numbers.shape[1] : numbers.shape[1] + 3] = keys
    return packed


def new_state(
    kind: Kind,
    table: Float[Tensor, "rows width"],
    *,
    master: bool = False,
    zeros_like: Callable[..., Tensor] = torch.zeros_like,
) -> dict[str, Tensor]:
    """Return what a rule keeps between the steps of a table, as it begins: zeros.

    Args:
        kind: Of the rule.
        table: What is updated.
        master: Whether a bf16 table is the upper half of fp32 values; the lower halves are in the
            state then.
        zeros_like: Makes zeros of the shape of a tensor, of the type `dtype`.

    Raises:
        ValueError: If a table with a master is not bf16.
    """
    if master and table.dtype != torch.bfloat16:
        raise ValueError(f"a table with a master must be bf16, got {table.dtype}")
    wide = torch.promote_types(table.dtype, torch.float32)
    state = {}
    if kind in ("adamw", "lazy_adamw"):
        dtype = wide if master else table.dtype
        state = {name: zeros_like(table, dtype=dtype) for name in ("exp_avg", "exp_avg_sq")}
    elif kind == "rowwise":
        one_per_row = table.new_empty(()).expand(len(table))
        state = {"mean_square": zeros_like(one_per_row, dtype=wide)}
    if master:
        state["low"] = zeros_like(table, dtype=torch.int16)
    return state

"""Table updates in plain torch: the definition, and the CPU path."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from workloads.kernels.table_update.split_master import join, split
from workloads.kernels.table_update.stochastic_rounding import round_to_bf16
from workloads.kernels.table_update.update_rules import Rule
from workloads.kernels.weighted_bag.reference import row_products


class ReferenceRowSums:
    """The sums of the rows that a step's bags name, in fp32 (float64 for tables of it)."""

    def __init__(
        self,
        table: Float[Tensor, "rows width"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
    ) -> None:
        """Sum `weights * x` per row, reads in the order of the bags."""
        self._table, self._ids, self._x = table, ids, x
        wide = torch.promote_types(table.dtype, torch.float32)
        sorted_ids, reads = ids.reshape(-1).sort(stable=True)
        # Reads of row `len(table)` come last, and are no row's.
        n_reads = int(torch.searchsorted(sorted_ids, len(table)))
        if not n_reads or not table.numel():
            self._rows: Tensor = ids.new_empty(0, dtype=torch.int64)
            self._sums: Tensor = table.new_empty(0, table.shape[1], dtype=wide)
            return
        sorted_ids, reads = sorted_ids[:n_reads], reads[:n_reads]
        rows, counts = torch.unique_consecutive(sorted_ids, return_counts=True)
        self._rows = rows.long()
        self._sums = functional.embedding_bag(
            reads // max(1, ids.shape[1]),
            x.to(wide),
            counts.cumsum(0) - counts,
            per_sample_weights=weights.reshape(-1)[reads].to(wide),
            mode="sum",
        )

    def norm(self) -> Float[Tensor, ""]:
        """Return the Euclidean norm of all sums: the norm of the gradient."""
        result: Tensor = torch.linalg.vector_norm(self._sums)
        return result

    def row_squares(self) -> Float[Tensor, " rows"]:
        """Return the sum of squares of every row's sum; 0 for rows that are not named."""
        squares = self._sums.new_zeros(len(self._table))
        return squares.index_copy_(0, self._rows, self._sums.square().sum(1))

    def update_(
        self,
        state: dict[str, Tensor],
        rule: Rule,
        coefficient: Float[Tensor, ""] | None = None,
        *,
        mean_squares: Float[Tensor, " rows"] | None = None,
        row_ids: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, ""]:
        """Update table and state by the sums times `coefficient`.

        Return the norm of the sums without it.
        """
        table, rows = self._table, self._rows
        g = self._sums if coefficient is None else self._sums * coefficient.to(self._sums.dtype)
        if rule.kind == "adamw":
            rows = torch.arange(len(table), device=table.device)
            g = g.new_zeros(table.shape).index_copy_(0, self._rows, g)
        named = rows + rule.origin[0] if row_ids is None else row_ids[rows].long()
        w = table.detach()[rows]
        w = join(w, state["low"][rows]) if "low" in state else w.to(g.dtype)
        w.mul_(1 - rule.lr * rule.weight_decay)
        if rule.kind in ("adamw", "lazy_adamw"):
            # The order of operations of `torch.optim.AdamW(foreach=False)`, so that the bits are
            # its too.
            m, s = (state[name][rows].to(g.dtype) for name in ("exp_avg", "exp_avg_sq"))
            m.lerp_(g, 1 - rule.beta1)
            s.mul_(rule.beta2).addcmul_(g, g, value=1 - rule.beta2)
            denominator = (s.sqrt() / math.sqrt(1 - rule.beta2**rule.step)).add_(rule.eps)
            w.addcdiv_(m, denominator, value=-rule.lr / (1 - rule.beta1**rule.step))
            _write(state["exp_avg"], rows, m, rule, named, stream=1)
            _write(state["exp_avg_sq"], rows, s, rule, named, stream=2)
        elif rule.kind == "rowwise":
            now = g.square().mean(1)
            if mean_squares is not None:
                scale = 1.0 if coefficient is None else coefficient.to(g.dtype).square()
                now = mean_squares[rows] * scale
            q = mean_square(state["mean_square"][rows], now, rule)
            state["mean_square"][rows] = q
            w.addcdiv_(g, (q.sqrt() + rule.eps)[:, None], value=-rule.lr)
        else:
            w.add_(g, alpha=-rule.lr)
        if "low" in state:
            high, low = split(w)
            table.detach().index_copy_(0, rows, high)
            state["low"].index_copy_(0, rows, low)
        else:
            _write(table.detach(), rows, w, rule, named, stream=0)
        return self.norm()

    def update_with_products_(
        self,
        state: dict[str, Tensor],
        rule: Rule,
        coefficient: Float[Tensor, ""] | None = None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "bags bag_size"]]:
        """Update, and return also the products of the rows as they were with their bags' `x`."""
        products = row_products(self._table, self._ids, self._x)
        return self.update_(state, rule, coefficient), products


def mean_square(
    before: Float[Tensor, " rows"], now: Float[Tensor, " rows"], rule: Rule
) -> Float[Tensor, " rows"]:
    """Return the row-wise second moment after a gradient whose mean square is `now`."""
    return torch.where(before == 0, now, rule.beta2 * before + (1 - rule.beta2) * now)


def _write(
    into: Tensor, rows: Tensor, values: Tensor, rule: Rule, named: Tensor, *, stream: int
) -> None:
    """Write rows; in bf16 by the random numbers of what they are named in the whole table."""
    if into.dtype == torch.bfloat16:
        key, first_column = rule.key(stream), rule.origin[1]
        values = round_to_bf16(values, named, key=key, first_column=first_column)
    into.index_copy_(0, rows, values)

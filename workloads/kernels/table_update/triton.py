"""Table updates in Triton: row sums and update rule in one pass.

The rows' sums as in the backward pass of a bag, and the rule applied where a sum is made.

Table and state are read once and written once. Two things need all sums before the first row may
change: an exact norm to clip by, and, where a row is wider than one program holds, the row-wise
rule's mean over the row. They take a pass of their own over the same sorted reads, that keeps one
square per row and block of columns. Where rows have many reads it keeps the sums as well, and the
update reads these.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.segment_sum.triton import (
    Pass,
    SortedReads,
    begin_pass,
    in_order_of,
    in_order_of_ids,
    row_sum,
    sort_reads,
)
from workloads.kernels.table_update.kept_sums import keeps_sums
from workloads.kernels.table_update.reference import mean_square
from workloads.kernels.table_update.stochastic_rounding import COLUMN_STRIDE
from workloads.kernels.table_update.update_rules import Rule, pack

_COLUMN_STRIDE = tl.constexpr(COLUMN_STRIDE)
_WHOLE_ROW_BYTES = 512
"""Rows of `x` up to here are summed by one program, which then knows their mean square: as many as
one warp holds."""
_GROUP = 16
GATHERED, STORED, LOADED = 0, 1, 2
"""Sums of a pass: made and used, made and kept as well, or those that were kept."""


class TritonRowSums:
    """`reference.RowSums`, summed in fp32."""

    def __init__(
        self,
        table: Float[Tensor, "rows width"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
        *,
        like: object = None,
    ) -> None:
        """Sort the reads, or take their order from sums of the same ids."""
        self._table, self._x, self._bag_size = table, x.contiguous(), ids.shape[1]
        self._reads: SortedReads = (
            in_order_of(like._reads, weights)
            if isinstance(like, TritonRowSums)
            else sort_reads(ids, weights, len(table))
        )
        self._squares: Tensor | None = None
        self._sums: Tensor | None = None
        self._begun: Pass | None = None

    def norm(self) -> Float[Tensor, ""]:
        """Return the norm of all sums, at the price of making them."""
        if self._squares is None:
            self._squares, _ = self._pass(Rule(kind="sgd", lr=0.0, step=1), only_squares=True)
        return self._squares.sum().sqrt()

    def row_squares(self) -> Float[Tensor, " rows"]:
        """Return every row's square, at the price of `norm`."""
        self.norm()
        assert self._squares is not None
        return self._squares.sum(0)

    def update_(
        self,
        state: dict[str, Tensor],
        rule: Rule,
        coefficient: Float[Tensor, ""] | None = None,
        *,
        mean_squares: Float[Tensor, " rows"] | None = None,
        row_ids: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, ""]:
        """Update table and state, return the norm."""
        norm, _ = self._update(
            state, rule, coefficient, products=False, mean_squares=mean_squares, row_ids=row_ids
        )
        return norm

    def update_with_products_(
        self,
        state: dict[str, Tensor],
        rule: Rule,
        coefficient: Float[Tensor, ""] | None = None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "bags bag_size"]]:
        """Update, and return also the products, in one pass."""
        norm, products = self._update(state, rule, coefficient, products=True)
        assert products is not None
        return norm, products.view(-1, self._bag_size)

    def _update(
        self,
        state: dict[str, Tensor],
        rule: Rule,
        coefficient: Tensor | None,
        *,
        products: bool,
        mean_squares: Tensor | None = None,
        row_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        whole_row = None
        if rule.kind == "rowwise":
            width = triton.next_power_of_2(self._table.shape[1])
            fits = self._squares is None and width * self._x.element_size() <= _WHOLE_ROW_BYTES
            if mean_squares is None and fits:
                whole_row = max(16, width)
            else:
                if mean_squares is None:
                    mean_squares = self.row_squares() / self._table.shape[1]
                self._update_mean_square(state["mean_square"], rule, coefficient, mean_squares)
        squares, found = self._pass(
            rule,
            state=state,
            coefficient=coefficient,
            products=products,
            block_width=whole_row,
            row_ids=row_ids,
        )
        return squares.sum().sqrt(), found

    def _update_mean_square(
        self,
        before: Float[Tensor, " rows"],
        rule: Rule,
        coefficient: Tensor | None,
        now: Float[Tensor, " rows"],
    ) -> None:
        if coefficient is not None:
            now = now * coefficient.square()
        touched = self._reads.starts.diff() > 0
        before.copy_(torch.where(touched, mean_square(before, now, rule), before))

    def _pass(
        self,
        rule: Rule,
        *,
        state: dict[str, Tensor] | None = None,
        coefficient: Tensor | None = None,
        only_squares: bool = False,
        products: bool = False,
        block_width: int | None = None,
        row_ids: Int[Tensor, " rows"] | None = None,
    ) -> tuple[Float[Tensor, "blocks rows"], Float[Tensor, " reads"] | None]:
        """Go over the rows once.

        Return the squares of the sums, made now if not before, and the products if wanted.
        """
        todo = self._begin(products=products, block_width=block_width)
        n_rows, how, sums = self._reads.n_rows, GATHERED, self._sums
        if sums is not None and not products:
            how = LOADED
        elif only_squares and keeps_sums(
            len(self._reads.rows), n_rows, element_bytes=self._x.element_size()
        ):
            sums = self._sums = self._x.new_empty(n_rows, self._x.shape[1], dtype=torch.float32)
            how = STORED
        squares = self._squares
        if squares is None:
            squares = self._x.new_zeros(todo.n_blocks, n_rows, dtype=torch.float32)
        if coefficient is None:
            coefficient = squares.new_ones(())
        _update_rows[(triton.cdiv(n_rows, _GROUP), todo.n_blocks)](
            *todo.arguments,
            squares=squares,
            sums=squares if sums is None else sums,
            coefficient=coefficient,
            row_ids=self._reads.starts if row_ids is None else row_ids,
            **_kept(state or {}, self._table),
            numbers=self._reads.starts if only_squares else _packed(rule, self._table.device),
            origin_row=rule.origin[0],
            origin_column=rule.origin[1],
            RULE="squares" if only_squares else rule.kind,
            MASTER="low" in (state or {}),
            WHOLE_ROW=block_width is not None,
            SQUARES=self._squares is None,
            COPIES=row_ids is not None,
            SUMS=how,
            GROUP=_GROUP,
            **todo.tiling,
        )
        found = in_order_of_ids(self._reads, todo.products, self._x.dtype) if products else None
        return squares, found

    def _begin(self, *, products: bool, block_width: int | None) -> Pass:
        """Return a pass whose splits are summed; that of the squares serves the update too."""
        if self._begun is not None and not products:
            return self._begun
        begun = begin_pass(
            self._reads, self._x, self._table, products=products, block_width=block_width
        )
        if not products and block_width is None:
            self._begun = begun
        return begun


def _kept(state: dict[str, Tensor], table: Tensor) -> dict[str, Tensor]:
    """Return the kernel's tensors of a rule's state.

    In the place of those that there are not, the table.
    """
    return {
        "first": state.get("exp_avg", state.get("mean_square", table)),
        "second": state.get("exp_avg_sq", table),
        "low": state.get("low", table),
    }


def _packed(rule: Rule, device: torch.device) -> Tensor:
    """Return a rule's numbers on the device; the host does not wait where they are copied now."""
    if rule.packed is not None:
        return rule.packed
    packed = pack([rule])[0]
    return packed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else packed


@triton.jit(do_not_specialize=["origin_row", "origin_column"])
def _update_rows(
    # `begin_pass`: the sorted reads, the table, and where the products go.
    x, read_bags, read_weights, starts, splits_end, split_sums, table, products,
    n_rows, n_reads, width,
    # Sums of squares, kept sums, the clipping coefficient, ids of copied rows, and the rule's
    # state (`_kept`).
    squares, sums, coefficient, row_ids, first, second, low,
    # The rule's numbers (`update_rules.pack`; of the pass for squares any), and the table's place.
    numbers, origin_row, origin_column,
    # What is compiled in: the rule, and the tiling of `begin_pass`.
    RULE: tl.constexpr, MASTER: tl.constexpr, WHOLE_ROW: tl.constexpr, SQUARES: tl.constexpr,
    COPIES: tl.constexpr, SUMS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    READS: tl.constexpr,
    WIDTH: tl.constexpr, PRODUCTS: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Sum GROUP rows, one after another, and apply RULE to each (equations: `update_rules.Rule`).

    A program has WIDTH columns of its rows. x is (bags, width), table, sums, low and moments (rows,
    width), squares (blocks, rows), the row-wise moment and the ids of COPIES (rows,).
    """
    first_row = tl.program_id(0).to(tl.int64) * GROUP
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = cols < width
    random_cols = cols + origin_column
    if RULE != "squares":
        factor = tl.load(coefficient).to(tl.float32)
        decay, step_size, rest1 = _number(numbers), _number(numbers + 1), _number(numbers + 2)
        beta2, rest2 = _number(numbers + 3), _number(numbers + 4)
        correction2, eps = _number(numbers + 5), _number(numbers + 6)
        table_key, first_key, second_key = (
            tl.load(numbers + 7), tl.load(numbers + 8), tl.load(numbers + 9),
        )  # fmt: skip
    for row in range(first_row, tl.minimum(first_row + GROUP, n_rows)):
        lo = tl.load(starts + row)
        end = tl.load(starts + row + 1)
        if (end > lo) | (RULE == "adamw"):
            place = tl.cast(row, tl.int64) * width + cols
            random_row = tl.load(row_ids + row) if COPIES else row + origin_row
            w = tl.zeros([1, WIDTH], tl.float32)
            # Asked for before the reads are summed, so that it arrives meanwhile.
            if RULE != "squares":
                w = _load(table + place, inside).to(tl.float32)
            if MASTER:
                rest = _load(low + place, inside)
            if (RULE == "adamw") | (RULE == "lazy_adamw"):
                m = _load(first + place, inside).to(tl.float32)
                s = _load(second + place, inside).to(tl.float32)
            if SUMS == 2:
                g = _load(sums + place, inside & (end > lo))
            else:
                g = row_sum(
                    row, lo, end, cols, inside, w, x, read_bags, read_weights, splits_end,
                    split_sums, products, n_reads, width,
                    CHUNK, READS, WIDTH, PRODUCTS, EVEN, ASSEMBLY,
                )  # fmt: skip
            if SUMS == 1:
                tl.store(sums + place, g, mask=inside, eviction_policy="evict_first")
            if SQUARES:
                tl.store(squares + tl.program_id(1).to(tl.int64) * n_rows + row, tl.sum(g * g))
            if RULE != "squares":
                g *= factor
                if (RULE == "adamw") | (RULE == "lazy_adamw"):
                    m += (g - m) * rest1
                    s = s * beta2 + g * g * rest2
                    change = step_size * m / (tl.sqrt(s) * correction2 + eps)
                    _store(first, place, m, random_row, random_cols, inside, first_key)
                    _store(second, place, s, random_row, random_cols, inside, second_key)
                elif RULE == "rowwise":
                    q = tl.load(first + row)
                    if WHOLE_ROW:
                        now = tl.sum(g * g) / width
                        q = tl.where(q == 0.0, now, q * beta2 + now * rest2)
                        tl.store(first + row, q)
                    change = step_size * g / (tl.sqrt(q) + eps)
                else:
                    change = step_size * g
                # Only now: halves take fewer registers than what they make.
                if MASTER:
                    w = _joined(w, rest)
                w = w * decay - change
                if MASTER:
                    _store_halves(table, low, place, w, inside)
                else:
                    _store(table, place, w, random_row, random_cols, inside, table_key)


@triton.jit
def _number(place):
    """Return the fp32 number whose bits are there."""
    return tl.load(place).to(tl.float32, bitcast=True)


@triton.jit
def _load(place, inside):
    """Return numbers [1, WIDTH] that are read once: out of the way of what is gathered."""
    return tl.load(place, mask=inside, other=0, eviction_policy="evict_first")


@triton.jit
def _joined(high, low):
    """Join bf16 values [1, WIDTH] and int16 lower halves to fp32 (`split_master.join`)."""
    return (high.to(tl.int32, bitcast=True) + low.to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _store_halves(table, low, place, value, inside):
    """Store fp32 values [1, WIDTH] in two halves (`split_master.split`)."""
    bits = value.to(tl.int32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000
    high = (tl.where(finite, bits + 0x8000, bits) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    rest = tl.where(finite, bits, 0).to(tl.int16)
    tl.store(table + place, high, mask=inside, eviction_policy="evict_first")
    tl.store(low + place, rest, mask=inside, eviction_policy="evict_first")


@triton.jit
def _store(into, place, value, row, cols, inside, key):
    """Store fp32 values [1, WIDTH] of a row.

    In bf16 they are rounded by the random numbers of key, row and columns.
    """
    if into.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        random = _random(row, cols, key) >> 16
        finite = (bits & 0x7F800000) != 0x7F800000
        value = tl.where(finite, (bits + random) & 0xFFFF0000, bits).to(tl.float32, bitcast=True)
    tl.store(
        into + place, value.to(into.dtype.element_ty), mask=inside, eviction_policy="evict_first"
    )


@triton.jit
def _random(row, cols, key):
    """Return 32 random bits for each of a row's columns (`stochastic_rounding.random_bits`)."""
    of_row = _mix(tl.cast(row, tl.uint32)) ^ tl.cast(key, tl.uint32)
    return _mix(of_row + cols.to(tl.uint32) * _COLUMN_STRIDE)


@triton.jit
def _mix(x):
    """Return 32 bits of each element mixed, the way of `stochastic_rounding.py`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)

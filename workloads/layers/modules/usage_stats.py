"""Usage statistics of table rows and experts in training.

The trainer has only some steps recorded (`training/step/usage_schedule.py`) and "all" below speaks
of those; "ever" of every step. All of it lies in buffers, so a resumed run reports what an
undisturbed one would. Weights are counted in integers, so that their sum does not depend on the
order of addition.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.process_group import RankGroup


class Usage(nn.Module, ABC):
    """What one layer records of its use; found by `usage_report` wherever a model holds it."""

    FAMILY: ClassVar[str]
    """Prefix of the metric names: memory or moe."""
    moments: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Rows output and residual; numbers, their sum, the sum of their squares.
        self.register_buffer("moments", torch.zeros(2, 3, dtype=torch.float64))

    @torch.no_grad()
    def record_output(self, output: Tensor, residual: Tensor) -> None:
        """Add what the layer put out in one pass, and what it is added to."""
        dtype = torch.promote_types(output.dtype, residual.dtype)
        dtype = torch.promote_types(dtype, torch.float32)
        # In few operations: in small models each costs more than its numbers do.
        sums = [x.sum(dtype=dtype) for x in (output, residual)]
        norms = [torch.linalg.vector_norm(x, dtype=dtype) for x in (output, residual)]
        self.moments[:, 0] += output.numel()
        self.moments[:, 1] += torch.stack(sums)
        self.moments[:, 2] += torch.stack(norms).double().square()

    def output_ratio(self) -> dict[str, float]:
        """Return output_ratio, or nothing where no output was recorded."""
        (n, total, squares), (_, residual_total, residual_squares) = self.moments.tolist()
        variance = residual_squares - residual_total**2 / max(n, 1)
        if not variance > 0:
            return {}
        return {"output_ratio": (max(squares - total**2 / n, 0.0) / variance) ** 0.5}

    def counters(self) -> list[Tensor]:
        """Return what `report` reads and sets to zero, in place."""
        return [buffer for name, buffer in self.named_buffers() if name != "ever"]

    @abstractmethod
    def report(self) -> dict[str, float]:
        """Return the statistics since the last report and start anew.

        Empty if nothing was recorded.
        """

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write zeros."""
        value.zero_()


def usage_report(model: nn.Module) -> dict[str, float]:
    """Return the statistics of every layer and their means over the layers, and start anew.

    Names are `memory/<statistic>` for the means and `memory/layer_03/<statistic>` for the layer of
    index 3; where one layer reads several tables, the part that reads them is named too:
    `memory/layer_03_query_key_value/…`.
    """
    values: dict[str, float] = {}
    sums: dict[str, list[float]] = {}
    for label, usage in usage_by_label(model).items():
        for name, value in usage.report().items():
            values[f"{usage.FAMILY}/{label}/{name}"] = value
            sums.setdefault(f"{usage.FAMILY}/{name}", []).append(value)
    return {**{name: sum(found) / len(found) for name, found in sums.items()}, **values}


def usage_by_label(model: nn.Module) -> dict[str, Usage]:
    """Return what every layer records of its use, by the label that `usage_report` gives it."""
    found = {path: module for path, module in model.named_modules() if isinstance(module, Usage)}
    labels = _labels(list(found))
    return {labels[path]: usage for path, usage in found.items()}


def usage_counters(model: nn.Module) -> list[Tensor]:
    """Return what all layers have recorded since the last report, in place.

    Of int64 and float64, to be summed over the ranks.
    """
    usages = (module for module in model.modules() if isinstance(module, Usage))
    return [counter for usage in usages for counter in usage.counters()]


def rows_ever_read(model: nn.Module) -> list[Bool[Tensor, " rows"]]:
    """Return which rows each table's readers have read in training, to be joined over the ranks."""
    return [module.ever for module in model.modules() if isinstance(module, MemoryUsage)]


def _labels(paths: list[str]) -> dict[str, str]:
    """Return `layer_03` for a path such as `layers.3.feed_forward.usage`."""
    places = {}
    for path in paths:
        parts = path.split(".")
        index = int(parts[parts.index("layers") + 1]) if "layers" in parts else None
        inner = parts[parts.index("layers") + 2 : -1] if index is not None else parts[:-1]
        places[path] = ("model" if index is None else f"layer_{index:02d}", inner)
    labels = {}
    for path, (layer, inner) in places.items():
        alone = sum(other == layer for other, _ in places.values()) == 1
        labels[path] = layer if alone else "_".join([layer, *inner[-1:]])
    if len(set(labels.values())) < len(labels):
        labels = {path: "_".join([layer, *inner]) for path, (layer, inner) in places.items()}
    return labels


class MemoryUsage(Usage):
    """How the rows of a table are read.

    Statistics, all over the recorded passes since the last report unless said:

        usage           share of rows read
        usage_ever      share of rows read since training began, recorded or not
        kl              KL divergence of the weight mass per row from an even one, nats
        effective_rows  exp(entropy) of a token's weights, 0 if all are zero; mean over tokens
        top1_weight     largest share of a token's weights, mean over tokens
        max_over_mean   reads of the most read row over the mean row's
        distinct_rows   different rows read by one pass, mean over passes
        output_ratio    standard deviation of the layer's output over the residual stream's
        shard_max_over_mean  reads of the rank that holds the most read rows over the mean rank's,
        where ranks share
                             the table out by rows
    """

    FAMILY: ClassVar[str] = "memory"
    BYTES_PER_ROW: ClassVar[int] = 8 + 8 + 1
    """Of what is kept: `mass`, `reads`, `ever`."""
    RECORDING_BYTES_PER_ROW: ClassVar[int] = 8
    """Of the reads of one pass, which `record` counts for a moment."""
    mass: Tensor
    reads: Tensor
    ever: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, n_rows: int, *, table_rows: Sequence[int] = ()) -> None:
        """Make what records the reads of `n_rows` rows.

        Args:
            n_rows: Of all tables that the layer reads by one id.
            table_rows: Rows of each, where several lie one after another; empty: one table.
        """
        super().__init__()
        self.table_rows = tuple(table_rows) or (n_rows,)
        self.read_counts: Tensor | None = None
        """Reads of every row (int64), training or not, while somebody counts them
        (`evaluation/table_reads.py`)."""
        self.register_buffer("mass", torch.zeros(n_rows, dtype=torch.int64))
        self.register_buffer("reads", torch.zeros(n_rows, dtype=torch.int64))
        self.register_buffer("ever", torch.zeros(n_rows, dtype=torch.bool))
        # effective_rows, top1_weight, distinct_rows
        self.register_buffer("sums", torch.zeros(3, dtype=torch.float64))
        # tokens, passes
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
        self.row_shards = 1
        """Over how many ranks the rows are shared out."""

    @torch.no_grad()
    def mark(self, ids: Int[Tensor, "..."]) -> None:
        """Note in training that rows were read.

        One write, for which no device waits, so in every pass. Count the reads where asked.
        """
        if self.training:
            self.ever.index_fill_(0, ids.reshape(-1).long(), True)
        if self.read_counts is not None:
            flat = ids.reshape(-1).long()
            self.read_counts.scatter_add_(0, flat, torch.ones_like(flat))

    @torch.no_grad()
    def record(
        self, ids: Int[Tensor, "tokens rows"], weights: Float[Tensor, "tokens rows"]
    ) -> None:
        """Add one pass, whose rows are marked apart.

        What counts of a weight is its size, not its sign.
        """
        size = weights.detach().float().abs()
        flat = ids.reshape(-1).long()
        # One extra unit per read: a row counts as read however small its weight.
        units = (size * _UNIT).to(torch.int64).add_(1)
        self.mass.scatter_add_(0, flat, units.reshape(-1))
        reads = torch.zeros_like(self.reads).scatter_add_(0, flat, torch.ones_like(flat))
        self.reads += reads
        whole = size.sum(dim=-1, keepdim=True)
        share = size / whole.clamp_min(1e-30)
        # `special.entr` takes ten times as long on a CPU.
        entropy = -(share * share.clamp_min(1e-30).log()).sum(dim=-1)
        # In few operations: in small models each costs more than its numbers do.
        self.sums += torch.stack(
            (
                # Where all weights are zero no row counts; exp(0) would be one.
                (entropy.exp() * (whole[:, 0] > 0)).sum(dtype=torch.float64),
                share.amax(dim=-1).sum(dtype=torch.float64),
                torch.count_nonzero(reads).double(),
            )
        )
        self.counts[0] += len(ids)
        self.counts[1] += 1

    def report(self) -> dict[str, float]:
        """Return the statistics since the last report and start anew.

        Empty if nothing was recorded.
        """
        tokens, passes = self.counts.tolist()
        if tokens == 0:
            return {}
        effective, top1, distinct = self.sums.tolist()
        share = self.mass.double() / self.mass.sum()
        values = {
            "usage": float((self.reads > 0).double().mean()),
            "usage_ever": float(self.ever.double().mean()),
            "kl": float(torch.special.xlogy(share, share * len(share)).sum()),
            "effective_rows": effective / tokens,
            "top1_weight": top1 / tokens,
            "max_over_mean": float(self.reads.max() / self.reads.double().mean()),
            "distinct_rows": distinct / passes,
            **self.output_ratio(),
        }
        if self.row_shards > 1:
            values["shard_max_over_mean"] = shard_imbalance(self.reads, self.row_shards)
        for counter in self.counters():
            counter.zero_()
        return values


def shard_imbalance(reads: Int[Tensor, " rows"], n_ranks: int) -> float:
    """Return the reads of the busiest rank over the mean rank's, of a table sharded by rows."""
    partition = HashPartition(len(reads))
    shards = (RankGroup(rank=rank, size=n_ranks).local_range(len(reads)) for rank in range(n_ranks))
    rows = (partition.rows(shard, device=reads.device) for shard in shards)
    per_rank = torch.stack([reads[each].sum() for each in rows]).double()
    return float(per_rank.max() / per_rank.mean())


_UNIT = 2**24
"""Weight 1 in the integer counts of `MemoryUsage`: finer than the fp32 weights' rounding."""


class ExpertUsage(Usage):
    """How tokens are spread over experts.

    Statistics, over the recorded passes since the last report:

        usage           share of experts that got a token
        kl              KL divergence of the load from an even one, nats
        max_over_mean   load of the busiest expert over the mean load
        dropped_share   share of tokens that no routed expert worked on
        router_entropy  entropy of a token's router probabilities, nats, mean over tokens
        output_ratio    standard deviation of the layer's output over the residual stream's
    """

    FAMILY: ClassVar[str] = "moe"
    load: Tensor
    entropy: Tensor
    counts: Tensor

    def __init__(self, n_experts: int) -> None:
        super().__init__()
        self.register_buffer("load", torch.zeros(n_experts, dtype=torch.int64))
        self.register_buffer("entropy", torch.zeros((), dtype=torch.float64))
        # tokens, dropped
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))

    @torch.no_grad()
    def record(
        self,
        load: Int[Tensor, " experts"],
        probabilities: Float[Tensor, "tokens experts"],
        dropped: Int[Tensor, ""] | int = 0,
    ) -> None:
        """Add one pass.

        Args:
            load: Tokens that each expert works on.
            probabilities: The router's, each token's summing to one.
            dropped: Tokens that no routed expert works on.
        """
        self.load += load
        self.entropy += torch.special.entr(probabilities.detach().float()).sum(dtype=torch.float64)
        self.counts[0] += len(probabilities)
        self.counts[1] += dropped

    def report(self) -> dict[str, float]:
        """Return the statistics since the last report and start anew.

        Empty if nothing was recorded.
        """
        tokens, dropped = self.counts.tolist()
        if tokens == 0:
            return {}
        share = self.load.double() / self.load.sum().clamp_min(1)
        values = {
            "usage": float((self.load > 0).double().mean()),
            "kl": float(torch.special.xlogy(share, share * len(share)).sum()),
            "max_over_mean": float(share.max() * len(share)),
            "dropped_share": dropped / tokens,
            "router_entropy": float(self.entropy) / tokens,
            **self.output_ratio(),
        }
        for counter in self.counters():
            counter.zero_()
        return values

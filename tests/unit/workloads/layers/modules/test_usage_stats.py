"""What is recorded of the use of rows and experts."""

import math

import pytest
import torch
from torch import nn

from workloads.layers.modules.usage_stats import ExpertUsage, MemoryUsage, usage_report


def test_even_reading():
    usage = MemoryUsage(8)

    usage.mark(torch.arange(8))
    usage.record(torch.arange(8).view(4, 2), torch.full((4, 2), 0.5))

    assert usage.report() == {
        "usage": 1.0,
        "usage_ever": 1.0,
        "kl": pytest.approx(0.0, abs=1e-6),
        "effective_rows": 2.0,
        "top1_weight": 0.5,
        "max_over_mean": 1.0,
        "distinct_rows": 8.0,
    }


def test_what_was_read_before_the_last_report_or_not_recorded_counts_as_ever_read_only():
    usage = MemoryUsage(8)
    usage.mark(torch.tensor([[0, 1]]))
    usage.record(torch.tensor([[0, 1]]), torch.tensor([[0.75, -0.25]]))
    assert usage.report()["top1_weight"] == 0.75

    usage.mark(torch.tensor([[5, 0]]))
    usage.mark(torch.tensor([[1, 2], [2, 2]]))
    usage.record(torch.tensor([[1, 2], [2, 2]]), torch.ones(2, 2))
    report = usage.report()

    assert (report["usage"], report["usage_ever"]) == (2 / 8, 4 / 8)
    assert report["distinct_rows"] == 2
    assert report["max_over_mean"] == 3 / (4 / 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_output_is_compared_with_the_residual(dtype):
    usage = MemoryUsage(2)
    usage.record(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1))
    residual = torch.randn(50, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))

    usage.record_output(0.5 * residual, residual)
    usage.record_output(0.25 * residual[:20] + 3.0, residual[:20])

    outputs = torch.cat((0.5 * residual, 0.25 * residual[:20] + 3.0))
    ratio = outputs.std(correction=0) / torch.cat((residual, residual[:20])).std(correction=0)
    assert usage.report()["output_ratio"] == pytest.approx(ratio.item(), rel=1e-5)


def test_experts():
    usage = ExpertUsage(4)
    even = torch.full((6, 4), 0.25)

    usage.record(torch.tensor([3, 1, 1, 0]), even, dropped=torch.tensor(2))
    report = usage.report()

    assert report["usage"] == 0.75
    assert report["max_over_mean"] == pytest.approx(0.6 * 4)
    assert report["dropped_share"] == pytest.approx(2 / 6)
    assert report["router_entropy"] == pytest.approx(math.log(4))
    assert report["kl"] == pytest.approx(math.log(4) + 0.6 * math.log(0.6) + 0.4 * math.log(0.2))
    assert usage.report() == {}


class _Layer(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for name, part in zip(("mixer", "feed_forward"), parts, strict=False):
            self.add_module(name, part)


class _Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.usage = MemoryUsage(2)
        self.usage.record(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1))


def test_names_tell_the_layer_and_where_it_has_several_tables_the_part():
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Module(), _Layer(_Module()), _Layer(_Module(), _Module())])

    report = usage_report(model)

    assert report["memory/usage"] == 0.5
    labels = {name.split("/")[1] for name in report if name.count("/") == 2}
    assert labels == {"layer_01", "layer_02_mixer", "layer_02_feed_forward"}
    assert usage_report(model) == {}


def test_usage_of_one_slot_only():
    usage = MemoryUsage(8)

    usage.record(torch.full((4, 2), 3), torch.tensor([[1.0, 0.0]]).expand(4, 2))
    report = usage.report()

    assert report["usage"] == 1 / 8
    assert report["kl"] == pytest.approx(math.log(8))
    assert report["effective_rows"] == 1.0


def test_a_token_whose_weights_are_all_zero_has_no_effective_row():
    usage = MemoryUsage(8)

    usage.record(torch.arange(4).view(2, 2), torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    report = usage.report()

    assert report["effective_rows"] == (2 + 0) / 2
    assert report["top1_weight"] == (0.5 + 0) / 2


def test_a_slot_read_with_a_vanishing_weight_counts_as_read():
    usage = MemoryUsage(2)

    usage.record(torch.tensor([[0, 1]]), torch.tensor([[1.0, 1e-30]]))

    assert usage.report()["usage"] == 1.0


def test_report_starts_anew_and_is_empty_when_nothing_was_read():
    usage = MemoryUsage(8)
    usage.record(torch.tensor([[0]]), torch.ones(1, 1))
    usage.report()

    assert usage.report() == {}


def test_order_and_grouping_of_batches_do_not_change_the_counts():
    generator = torch.Generator().manual_seed(0)
    ids, weights = (
        torch.randint(8, (30, 4), generator=generator),
        torch.rand(30, 4, generator=generator),
    )
    whole, parts = MemoryUsage(8), MemoryUsage(8)

    whole.record(ids, weights)
    for rows in (slice(20, 30), slice(0, 20)):
        parts.record(ids[rows], weights[rows])

    assert torch.equal(whole.mass, parts.mass)

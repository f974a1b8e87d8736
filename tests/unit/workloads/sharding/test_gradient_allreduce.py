"""Sums of gradients: what goes in one message, when it starts, in which order.

What is summed is checked by real ranks in `sharding/test_ranks_together.py`; here a group of one
stands in for a larger one, so a sum changes nothing.
"""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.sharding import gradient_allreduce
from workloads.sharding.gradient_allreduce import GradientAllReduce

KIB = 1024
WIDTH = 16
"""A weight of 16 x 16 fp32 numbers has one KiB."""


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Mesh(world=RankGroup(rank=0, size=2))
    dist.destroy_process_group()


@pytest.fixture
def sent(monkeypatch):
    """Sizes of the messages, in order, and "end" where the pass ended."""
    log = []
    start = gradient_allreduce._Bucket.start

    def logged(bucket):
        if sizes := [p.grad.numel() for p in bucket.parameters if p.grad is not None]:
            log.append(sum(sizes))
        start(bucket)

    monkeypatch.setattr(gradient_allreduce._Bucket, "start", logged)
    return log


class Layers(nn.Module):
    """Linear layers that are used in another order than they are named."""

    def __init__(self, widths, used):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH * times, bias=False) for times in widths)
        self.used = used

    def forward(self, x):
        for i in self.used:
            x = x + self.layers[i](x)[..., :WIDTH]
        return x.square().sum()


def passes(model, sums, sent, n=1):
    """Run backward passes of which the last is the step's last.

    Return the gradient that torch finds by itself.
    """
    x = torch.ones(3, WIDTH)
    wanted = torch.autograd.grad(model(x), list(model.parameters()), allow_unused=True)
    model.zero_grad()
    for i in range(n):
        if i == n - 1:
            sums.start()
        model(x).backward()
    sent.append("end")
    sums.finish()
    return [None if grad is None else n * grad for grad in wanted]


def test_messages_start_while_the_pass_goes_on_and_sums_are_right(mesh, sent):
    model = Layers([1, 1, 1, 1], used=[0, 1, 2, 3])
    sums = GradientAllReduce(model, mesh, bucket_bytes=2 * KIB)

    wanted = passes(model, sums, sent)

    assert sent == [512, 512, "end"]
    assert all(
        torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), wanted, strict=True)
    )


def test_the_second_step_sends_in_the_order_in_which_the_first_was_ready(mesh, sent):
    model = Layers([1, 2, 3, 4], used=[3, 0, 2, 1])
    sums = GradientAllReduce(model, mesh, bucket_bytes=1)

    passes(model, sums, sent)
    first = sent[:]
    sent.clear()
    passes(model, sums, sent)

    # The last one named is the first one used: its gradient comes last, and in the first step kept
    # the others back.
    assert first == [256 * width for width in [4, 3, 2, 1]] + ["end"]
    assert sent == [256 * width for width in [2, 3, 1, 4]] + ["end"]


def test_only_the_last_of_several_passes_sends(mesh, sent):
    model = Layers([1, 1], used=[0, 1])
    sums = GradientAllReduce(model, mesh, bucket_bytes=1)

    wanted = passes(model, sums, sent, n=3)

    assert sent == [256, 256, "end"]
    assert all(
        torch.allclose(p.grad, grad) for p, grad in zip(model.parameters(), wanted, strict=True)
    )


def test_a_parameter_without_a_gradient_sends_nothing_and_keeps_none(mesh, sent):
    model = Layers([1, 2, 3], used=[0, 2])
    sums = GradientAllReduce(model, mesh, bucket_bytes=1)

    for _ in range(2):
        sent.clear()
        passes(model, sums, sent)
        assert sorted(size for size in sent if size != "end") == [256, 768]
        assert model.layers[1].weight.grad is None

    assert sent == [768, 256, "end"]


def test_what_never_gets_a_gradient_keeps_nobody_waiting(mesh, sent):
    model = Layers([1, 2], used=[0])
    sums = GradientAllReduce(model, mesh, without={model.layers[1].weight}, bucket_bytes=4 * KIB)

    passes(model, sums, sent)

    assert sent == [256, "end"]


def test_gradients_that_are_views_of_others_are_summed_too(mesh):
    weight = nn.Parameter(torch.ones(4, 3))
    model = nn.ParameterList([weight])
    sums = GradientAllReduce(model, mesh)
    sums.start()
    weight.grad = torch.arange(12.0).view(3, 4).T
    sums.finish()

    assert torch.equal(weight.grad, torch.arange(12.0).view(3, 4).T)
    assert weight.grad.is_contiguous()


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([torch.float32, torch.float64]))),
    bucket_bytes=st.integers(1, 400),
)
def test_every_parameter_is_in_one_bucket_of_its_type(sizes, bucket_bytes):
    parameters = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n, dtype in sizes]

    buckets = gradient_allreduce._deal(RankGroup(size=2), parameters, bucket_bytes)

    dealt = [id(p) for bucket in buckets for p in bucket.parameters]
    assert sorted(dealt) == sorted(map(id, parameters))
    for bucket in buckets:
        assert len({p.dtype for p in bucket.parameters}) == 1
        if len(bucket.parameters) > 1:
            assert sum(p.nbytes for p in bucket.parameters) <= bucket_bytes


def test_one_rank_hangs_no_hooks(sent):
    model = Layers([1], used=[0])
    sums = GradientAllReduce(model, Mesh())

    passes(model, sums, sent)

    assert sent == ["end"]
    assert not model.layers[0].weight._post_accumulate_grad_hooks

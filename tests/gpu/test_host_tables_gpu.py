"""Tables in pinned host memory: a GPU reads and updates them to the bits of tables in its own memory."""

import io

import pytest
import torch
from torch import Tensor, nn

from workloads.architectures import memory_plus
from workloads.decoding.decoder import Decoder
from workloads.distributed.mesh import Mesh
from workloads.layers.memory import host_offload
from workloads.layers.memory.host_offload import empty_on_host
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import Place, materialise_model
from workloads.training.config import TrainConfig
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.optimizer.table_optimizer import RULE_OF

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

# Rows of 4 and 1,536 bytes in fp32, an odd width, and one beyond what a program of the update holds.
WIDTHS = [1, 384, 97, 2500]


class Reader(nn.Module):
    """A bag and products of one table."""

    PARAM_GROUP = "attention"

    def __init__(self, n_rows: int, width: int, *, on_host: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = MemoryTable(n_rows, width)
        initialise(self.table, 0)
        self.table.to(dtype)
        if on_host:
            self.table.to_host(torch.device("cuda"))
        else:
            self.table.cuda()

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        bags = self.table(ids, weights)
        return bags + self.table(ids, self.table.gathered_dot(ids, bags.tanh()))


def batch(n_rows: int, bags: int, bag_size: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    ids = torch.randint(n_rows, (bags, bag_size), generator=generator, device="cuda")
    weights = torch.randn(bags, bag_size, generator=generator, device="cuda")
    return ids, weights.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_values_lie_on_the_host_and_what_the_gpu_writes_is_there(dtype):
    held = torch.cuda.memory_allocated()

    table = empty_on_host(2**16 + 1, 129, dtype=dtype, device=torch.device("cuda"))

    assert table.is_cuda
    assert table.dtype == dtype
    assert torch.cuda.memory_allocated() - held < 2**20
    expected = torch.randn(2**16 + 1, 129, device="cuda").to(dtype)
    table.copy_(expected)
    assert torch.equal(table, expected)
    assert torch.equal(table.cpu(), expected.cpu())
    table[5].zero_()
    table.index_copy_(0, torch.tensor([7], device="cuda"), expected[:1])
    kept = io.BytesIO()
    torch.save(table, kept)
    kept.seek(0)
    saved = torch.load(kept, map_location="cpu", weights_only=True)
    assert not saved[5].any()
    assert torch.equal(saved[7], expected[0].cpu())


@pytest.mark.parametrize("direct_reads", [0, 2**20], ids=["fetched", "in place"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_outputs_and_gradients_have_the_bits_of_a_table_on_the_device(
    monkeypatch, width, dtype, direct_reads
):
    monkeypatch.setattr(host_offload, "DIRECT_READS", direct_reads)
    found = []
    for on_host in (False, True):
        reader = Reader(500, width, on_host=on_host, dtype=dtype)
        reader.table.defer_gradient()
        ids, weights = batch(500, 40, 16)
        output = reader(ids, weights)
        output.float().square().sum().backward()
        hits = reader.table.sparse_gradient.take()
        found.append([output, weights.grad, hits.ids, hits.weights, hits.x])

    for expected, other in zip(*found, strict=True):
        assert torch.equal(expected, other)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_master"])
@pytest.mark.parametrize("name", RULE_OF)
@pytest.mark.parametrize("width", WIDTHS)
def test_three_optimizer_steps_have_the_bits_of_a_table_on_the_device(
    monkeypatch, width, name, precision
):
    monkeypatch.setattr(host_offload, "DIRECT_READS", 0)
    config = TrainConfig(
        tokens=8,
        batch_tokens=8,
        seq_len=8,
        lr=0.1,
        value_weight_decay=0.1,
        grad_clip=0.5,
        table_optimizer=name,
        table_precision=precision,
    )
    found = []
    for on_host in (False, True):
        reader = Reader(500, width, on_host=on_host, dtype=torch.float32)
        reader.scale = nn.Parameter(torch.ones((), device="cuda"))
        optimizer = Optimizer(reader, config, seed=3)
        for step in range(3):
            ids, weights = batch(500, 40, 4, seed=step)
            reader(ids, weights * reader.scale).float().square().sum().backward()
            optimizer.clip()
            optimizer.step(0.1)
        state = optimizer.tables.state_dict()["states"]["table"]
        found.append([reader.table.weight.detach(), *state.values()])

    start = Reader(500, width, on_host=False, dtype=found[0][0].dtype).table.weight
    assert (found[0][0] != start).any()
    for expected, other in zip(*found, strict=True):
        assert torch.equal(expected, other)


def test_a_step_takes_memory_for_the_rows_it_reads_only():
    reader = Reader(2**20, 128, on_host=True, dtype=torch.float32)
    reader.scale = nn.Parameter(torch.ones((), device="cuda"))
    config = TrainConfig(tokens=8, batch_tokens=8, seq_len=8, lr=0.1, table_optimizer="lazy_adamw")
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    optimizer = Optimizer(reader, config)
    for step in range(2):
        ids, weights = batch(2**20, 512, 64, seed=step)
        reader(ids, weights * reader.scale).square().sum().backward()
        optimizer.clip()
        optimizer.step(0.1)

    # Three reads of 32,768 rows of 512 bytes, and some numbers per row of the table; table and moments are 1.6 GB.
    assert torch.cuda.max_memory_allocated() - held < 200 * 2**20


def test_decoding_is_that_of_a_model_on_the_device_and_waits_for_nothing(never_waiting):
    config = memory_plus.Config(**memory_plus.PRESETS["d32"])

    def model_with(place: Place) -> nn.Module:
        here = torch.device("cuda")
        model = materialise_model(
            lambda: config.build(97), Mesh(), layout="columns", here=here, place=place
        ).eval()
        initialise(model, 0)
        return model

    on_device, on_host = model_with("device"), model_with("host")
    prompt = torch.randint(97, (3, 20), device="cuda")

    assert on_host.memory_table.on_host
    first, second = (
        Decoder(model).generate(prompt.tolist(), n_tokens=12) for model in (on_host, on_device)
    )
    assert first == second
    with torch.inference_mode():
        torch.testing.assert_close(on_host(prompt), on_device(prompt), rtol=1e-5, atol=1e-5)
        ids = torch.randint(config.n_keys**2, (8, 128), device="cuda")
        weights = torch.rand(8, 128, device="cuda")
        on_host.memory_table(ids, weights)  # compiles
        with never_waiting():
            on_host.memory_table(ids, weights)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_gpu_maps_its_own():
    second = torch.device("cuda", 1)
    table = empty_on_host(1000, 64, dtype=torch.float32, device=second)

    table.fill_(2.0)

    assert table.device == second
    assert table.sum().item() == 2.0 * 64 * 1000

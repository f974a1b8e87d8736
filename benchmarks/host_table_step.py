"""Time of a training step with 3e8 rows in host memory, over the same model with 1e7 on the GPU.

    python benchmarks/host_table_step.py                       # 30m and 134m, rows of 32 and 128; four minutes
    python benchmarks/host_table_step.py --bases 30m --widths 32
    python benchmarks/host_table_step.py --device cpu --small  # a rehearsal

`engram` on a dense base, updated row by row in bf16, compiled and captured as trials train. Rows of
the next batch are fetched while a step computes (`workloads/training/optimizer/row_prefetch.py`).
The ways take turns, each a block of steps from an idle GPU to an idle GPU; medians of blocks.

"over device" is the step with host tables over the one with tables on the GPU. "waiting" fetches
nothing ahead, so each step waits for its rows. "bus" fetches and writes the rows and computes
nothing. "rows" are the different ones that a step reads in all tables, "MB" what they weigh: they
cross the bus once each way. Tokens are drawn as Zipf has it, or evenly: then hardly any n-gram
comes twice, which is more than any text asks for.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from gpu_required import require_gpu
from torch import Tensor, nn

from workloads.architectures import engram
from workloads.layers.memory.host_offload import empty_on_host
from workloads.layers.memory.table import MemoryTable
from workloads.layers.memory.token_reads import token_readers
from workloads.layers.modules.init import initialise
from workloads.training import device
from workloads.training.config import TrainConfig
from workloads.training.optimizer.row_prefetch import RowPrefetch
from workloads.training.step.cuda_graph import CapturedStep, capture_if_possible
from workloads.training.step.train_step import WARM_UP_STEPS, TrainStep
from workloads.training.step.usage_schedule import set_usage_recording

VOCAB_SIZE = 8192
N_BATCHES = 8
HEADS = (
    "base", "row", "table GB", "tokens", "rows", "MB", "device ms", "host ms", "over device",
    "waiting ms", "bus ms", "peak GB on GPU",
)  # fmt: skip
Step = TrainStep | CapturedStep


def main() -> None:
    """Print one line per width, base and kind of tokens."""
    arguments = _arguments()
    require_gpu(arguments.device)
    here = torch.device(arguments.device, 0)  # with a number, as a rank's
    gpu = torch.cuda.get_device_name() if here.type == "cuda" else "CPU"
    print(
        f"{gpu}, torch {torch.__version__}; {arguments.rows:,} rows in host memory, "
        f"{arguments.device_rows:,} on the GPU; {arguments.batch_tokens:,} tokens a step\n\n"
        f"| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|",
        flush=True,
    )
    n_threads = torch.get_num_threads()
    with device.numerics(here, n_threads=n_threads, bf16=True), device.gpu_stream(here):
        for width in arguments.widths:
            values: dict[int, Tensor] = {}
            for base in arguments.bases:
                _print_base(arguments, base, width, values, here)
                gc.collect()
                if here.type == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()


def _print_base(
    arguments: argparse.Namespace,
    base: str,
    width: int,
    host_values: dict[int, Tensor],
    here: torch.device,
) -> None:
    """Print the lines of one base. `host_values` are tables in host memory, made once a width."""
    on_gpu = _step(arguments, base, width, here, None)
    in_host = _step(arguments, base, width, here, host_values)
    assert in_host.optimizer.tables is not None
    prefetch = in_host.optimizer.tables.prefetch
    for kind in arguments.tokens:
        batches = _batches(arguments, kind, here)
        ms = _medians(
            {
                "device": partial(_train, on_gpu, batches, foresees=False),
                "host": partial(_train, in_host, batches, foresees=True),
                "waiting": partial(_train, in_host, batches, foresees=False),
                "bus": partial(_fetch_and_write, prefetch, batches),
            },
            arguments,
            here,
        )
        n_rows = _distinct_rows(in_host.model, batches[0])
        cells = [
            base,
            str(width),
            f"{sum(each.nbytes for each in host_values.values()) / 1e9:.1f}",
            kind,
            f"{n_rows:,}",
            f"{n_rows * width * 2 / 1e6:.0f}",
            f"{ms['device']:.2f}",
            f"{ms['host']:.2f}",
            f"{ms['host'] / ms['device']:.3f}",
            f"{ms['waiting']:.2f}",
            f"{ms['bus']:.2f}",
            f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if here.type == "cuda" else "-",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def _step(
    arguments: argparse.Namespace,
    base: str,
    width: int,
    here: torch.device,
    host_values: dict[int, Tensor] | None,
) -> Step:
    """Return the step of a model whose tables lie in host memory, or on the GPU if None."""
    preset = engram.PRESETS[base]
    heads = preset.get("n_hash_heads", engram.Config.n_hash_heads)
    shape = engram.Config(**{**preset, "ngram_dim": width * heads})
    parts = len(shape.placement) * shape.engram.rows_read
    rows = arguments.device_rows if host_values is None else arguments.rows
    config = engram.Config(**{**preset, "ngram_dim": width * heads, "rows_per_head": rows // parts})
    model = _model(config, here, host_values)
    set_usage_recording(model, now=False)
    train = TrainConfig(
        tokens=1000 * arguments.batch_tokens,
        batch_tokens=arguments.batch_tokens,
        seq_len=arguments.seq_len,
        lr=1e-4,
        table_optimizer="rowwise",
        table_precision="bf16",
    )
    step = TrainStep(
        model.train(),
        train,
        passes=1,
        autocast=partial(device.autocast, bf16=True, device=here),
        compiled=here.type == "cuda",
    )
    return capture_if_possible(step, bf16=True) if here.type == "cuda" else step


def _model(
    config: engram.Config, here: torch.device, host_values: dict[int, Tensor] | None
) -> nn.Module:
    """Return a model; its tables are filled where they lie, which a trial does on the CPU."""
    with torch.device("meta"):
        model = config.build(VOCAB_SIZE)
    tables = [module for module in model.modules() if isinstance(module, MemoryTable)]
    shapes = [table.weight.shape for table in tables]
    for table, (_, width) in zip(tables, shapes, strict=True):
        table.weight = nn.Parameter(torch.empty(1, width))
    model.to_empty(device=here)
    initialise(model, 0)
    for number, (table, table_shape) in enumerate(zip(tables, shapes, strict=True)):
        if host_values is None:
            values = torch.empty(table_shape, dtype=torch.bfloat16, device=here)
        elif number in host_values:
            values = host_values[number]
        else:
            values = empty_on_host(*table_shape, dtype=torch.bfloat16, device=here)
            host_values[number] = values
        table.weight = nn.Parameter(values.normal_(0.0, table.std))
        table.on_host = host_values is not None
    return model


def _batches(arguments: argparse.Namespace, kind: str, here: torch.device) -> list[Tensor]:
    generator = np.random.default_rng(0)
    chances = np.ones(VOCAB_SIZE) if kind == "even" else 1 / (np.arange(VOCAB_SIZE) + 2.7)
    sequences = arguments.batch_tokens // arguments.seq_len
    drawn = generator.choice(
        VOCAB_SIZE, (N_BATCHES, sequences, arguments.seq_len + 1), p=chances / chances.sum()
    )
    return [*torch.from_numpy(drawn).to(here)]


def _train(step: Step, batches: list[Tensor], n_steps: int, *, foresees: bool) -> None:
    for number in range(n_steps):
        upcoming = batches[(number + 1) % N_BATCHES] if foresees else None
        step(batches[number % N_BATCHES], lr=1e-4, upcoming=upcoming)
    step.optimizer.settle()


def _fetch_and_write(prefetch: RowPrefetch, batches: list[Tensor], n_steps: int) -> None:
    for number in range(n_steps):
        prefetch.begin(batches[number % N_BATCHES], batches[(number + 1) % N_BATCHES])
        prefetch.write_back()
    prefetch.settle()


def _medians(
    ways: Mapping[str, Callable[[int], None]], arguments: argparse.Namespace, here: torch.device
) -> dict[str, float]:
    """Return ms a step of every way, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(WARM_UP_STEPS + 2)
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            if here.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            way(arguments.block)
            if here.type == "cuda":
                torch.cuda.synchronize()
            found[name].append(1e3 * (time.perf_counter() - start) / arguments.block)
    return {name: statistics.median(blocks) for name, blocks in found.items()}


def _distinct_rows(model: nn.Module, windows: Tensor) -> int:
    """Return the different rows of all tables that a batch reads."""
    return sum(
        len(
            torch.cat([reader.token_rows(windows[:, :-1]).flatten() for reader in readers]).unique()
        )
        for readers in token_readers(model).values()
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bases", nargs="+", default=["30m", "134m"])
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 128], help="numbers of a row")
    parser.add_argument("--rows", type=int, default=300_000_000, help="in host memory, all tables")
    parser.add_argument("--device-rows", type=int, default=10_000_000)
    parser.add_argument("--tokens", nargs="+", choices=("zipf", "even"), default=["zipf", "even"])
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--block", type=int, default=8, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="d16, few rows and tokens")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.bases, arguments.batch_tokens, arguments.seq_len = ["d16"], 512, 64
        arguments.rows, arguments.device_rows = 30_000, 1000
    return arguments


if __name__ == "__main__":
    main()

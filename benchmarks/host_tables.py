"""Time of a table in host or GPU memory: decoding, a long prompt, fine-tuning.

    python benchmarks/host_tables.py                   # 2^20 rows of 1,024, bf16, 128 reads a token; about two minutes
    python benchmarks/host_tables.py --ids zipf
    python benchmarks/host_tables.py --tune-tokens 1024 65536

Reading, ms: `device` is the bag of a table on the GPU. Of a table on the host, `in place` reads
every row as often as it is named, over the bus; `fetched` finds the different rows, copies each
once and reads the copy (a table does the first up to `host_offload.DIRECT_READS` reads, the second
above); `by host` finds them too, has the host gather them into pinned memory, and copies that.
`floor` is the different rows' bytes at the bandwidth of a large copy from pinned memory. `over
device` is what a table on the host takes over one on the device; `same` says that all outputs have
equal bits.

Fine-tuning: forward, backward (gradients of table and weights) and the optimizer's step, of tables
in bf16. `floor` brings the different rows to the GPU for reading, and again, with their moments,
for the update, whose way back overlaps. `GB on device` are the most that was allocated beside the
batch. `same` compares values and moments after all steps.
"""

import argparse
from collections.abc import Callable

import torch
from gpu_required import require_gpu
from gpu_timing import median_ms
from reads import draw_ids
from torch import Tensor, nn

from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory.host_offload import DIRECT_READS, fetch_rows
from workloads.layers.memory.table import MemoryTable
from workloads.training.config import TrainConfig
from workloads.training.optimizer.table_optimizer import TableOptimizer

READING = "{:>7} {:>8} {:>9} {:>9} | {:>8} {:>9} {:>9} {:>9} {:>12} {:>5}"
TUNING = "{:>7} {:>15} | {:>8} {:>9} {:>9} {:>12} | {:>13} {:>10} {:>5}"


def main() -> None:
    """Print both tables."""
    arguments = _arguments()
    require_gpu()
    torch.manual_seed(0)
    on_device = _table(arguments)
    bus_gbps = _bus_gbps()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {arguments.rows:,} rows of {arguments.width}, bf16, "
        f"{arguments.reads} reads a token, {arguments.ids} ids; medians\n"
        f"copy from pinned memory {bus_gbps:.1f} GB/s; {torch.get_num_threads()} threads gather on the host\n"
    )
    with torch.inference_mode():
        _print_reading(arguments, on_device, bus_gbps)
    print()
    _print_tuning(arguments, on_device, bus_gbps)


def _print_reading(arguments: argparse.Namespace, on_device: Tensor, bus_gbps: float) -> None:
    table = _memory(on_device, on_host=True)
    pinned = on_device.cpu().pin_memory()
    print(
        READING.format(
            "tokens",
            "rows",
            "MB",
            "floor ms",
            "device",
            "in place",
            "fetched",
            "by host",
            "over device",
            "same",
        )
    )
    for tokens in arguments.tokens:
        ids = draw_ids(
            arguments.ids, tokens, arguments.reads, n_rows=arguments.rows, device=on_device.device
        )
        weights = torch.rand(ids.shape, device=on_device.device).to(on_device.dtype)
        n_rows = len(ids.unique())
        n_bytes = n_rows * on_device.shape[1] * on_device.element_size()
        ways: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
            "device": lambda ids=ids: (on_device, ids),
            "in place": lambda ids=ids: (table.weight, ids),
            "fetched": lambda ids=ids: fetch_rows(table.weight, ids, direct_reads=0),
            "by host": lambda ids=ids: _gathered_by_host(pinned, ids),
        }
        outputs = [weighted_bag(*way(), weights) for way in ways.values()]
        outputs.append(table(ids, weights))
        ms = {
            name: median_ms(lambda way=way, weights=weights: weighted_bag(*way(), weights))
            for name, way in ways.items()
        }
        chosen = ms["in place" if ids.numel() <= DIRECT_READS else "fetched"]
        print(
            READING.format(
                f"{tokens:,}",
                f"{n_rows:,}",
                f"{n_bytes / 1e6:.1f}",
                f"{n_bytes / bus_gbps / 1e6:.3f}",
                *(f"{each:.3f}" for each in ms.values()),
                f"{chosen / ms['device']:.1f}",
                _said(all(torch.equal(each, outputs[0]) for each in outputs)),
            ),
            flush=True,
        )


def _gathered_by_host(table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that `ids` names as the host gathers them, and where they are."""
    rows, places = torch.unique(ids, return_inverse=True)
    gathered = torch.empty(len(rows), table.shape[1], dtype=table.dtype, pin_memory=True)
    torch.index_select(table, 0, rows.cpu(), out=gathered)
    return gathered.to(ids.device, non_blocking=True), places


def _print_tuning(arguments: argparse.Namespace, values: Tensor, bus_gbps: float) -> None:
    print(
        TUNING.format(
            "tokens",
            "optimizer",
            "floor ms",
            "device ms",
            "host ms",
            "over device",
            "GB on device",
            "with host",
            "same",
        )
    )
    for tokens in arguments.tune_tokens:
        ids = draw_ids(
            arguments.ids, tokens, arguments.reads, n_rows=arguments.rows, device=values.device
        )
        weights = torch.rand(ids.shape, device=values.device) / arguments.reads
        weights = weights.to(values.dtype).requires_grad_()
        grad = 0.01 * torch.randn(tokens, arguments.width, device=values.device).to(values.dtype)
        row_bytes = len(ids.unique()) * values.shape[1] * values.element_size()
        for kind in ("lazy_adamw", "rowwise", "sgd"):
            # To the GPU: rows to read, then rows and moments to update. What goes back meets
            # nothing on its way.
            passes = {"lazy_adamw": 4, "rowwise": 2, "sgd": 2}[kind]
            device_ms, device_gb, expected = _tuned(values, kind, ids, weights, grad, on_host=False)
            host_ms, host_gb, found = _tuned(values, kind, ids, weights, grad, on_host=True)
            same = all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(expected, found, strict=True))
            print(
                TUNING.format(
                    f"{tokens:,}",
                    kind,
                    f"{passes * row_bytes / bus_gbps / 1e6:.1f}",
                    f"{device_ms:.2f}",
                    f"{host_ms:.2f}",
                    f"{host_ms / device_ms:.1f}",
                    f"{device_gb:.2f}",
                    f"{host_gb:.2f}",
                    _said(same),
                ),
                flush=True,
            )
            del expected, found


def _tuned(
    values: Tensor, kind: str, ids: Tensor, weights: Tensor, grad: Tensor, *, on_host: bool
) -> tuple[float, float, list[Tensor]]:
    """Return the median time of a step, its peak GB, and values and moments at the end."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    model = nn.Module()
    model.table = _memory(values, on_host=on_host)
    config = TrainConfig(
        tokens=1,
        batch_tokens=1,
        seq_len=1,
        lr=1e-3,
        value_weight_decay=0.1,
        table_optimizer=kind,
        table_precision="bf16",
    )
    optimizer = TableOptimizer(model, config)

    def step() -> None:
        weights.grad = None
        model.table(ids, weights).backward(grad)
        optimizer.clip()
        optimizer.step(config.lr)

    ms = median_ms(step, repeats=7)
    gigabytes = (torch.cuda.max_memory_allocated() - held) / 1e9
    weights.grad = None
    moments = optimizer.state_dict()["states"]["table"].values()
    return ms, gigabytes, [model.table.weight.detach(), *moments]


def _memory(values: Tensor, *, on_host: bool) -> MemoryTable:
    """Return a table with a copy of `values`."""
    with torch.device("meta"):
        table = MemoryTable(*values.shape)
    table.weight = nn.Parameter(values if on_host else values.clone())
    if on_host:
        table.to_host(values.device)
    return table


def _table(arguments: argparse.Namespace) -> Tensor:
    table = torch.empty(arguments.rows, arguments.width, dtype=torch.bfloat16, device="cuda")
    return table.normal_(0.0, arguments.width**-0.5)


def _bus_gbps() -> float:
    source = torch.zeros(2**29, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    return len(source) / median_ms(lambda: target.copy_(source, non_blocking=True)) / 1e6


def _said(same: bool) -> str:
    return "yes" if same else "NO"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 8192])
    parser.add_argument("--tune-tokens", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--rows", type=int, default=2**20)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--reads", type=int, default=128, help="rows that a token reads")
    parser.add_argument("--ids", choices=("uniform", "zipf"), default="uniform")
    return parser.parse_args()


if __name__ == "__main__":
    main()

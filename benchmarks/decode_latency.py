"""Milliseconds a decoded token, beside plain torch and the time that reading the bytes takes.

    python benchmarks/decode_latency.py                       # dense, moe, memory_plus at 1.3b
    python benchmarks/decode_latency.py --device cpu --tiny   # whether it runs

Ours is the step of `workloads.decoding`, greedy, with a cache that is read up to the
token's position; the peer (`plain_decode.py`) is a replayed CUDA graph of plain torch in the same
run. All models have the FLOPs of dense; moe and memory_plus store about as many parameters as each
other. The floor is the bytes of all weights that the batch needs, of the rows and experts that it
has in fact touched and of the keys and values, over the bandwidth of a copy in the same run.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_required import require_gpu
from gpu_timing import captured, copy_gbps, median_ms
from plain_decode import PlainDecoder, Shape
from torch import Tensor, nn

from workloads.architectures import dense, memory_plus, moe
from workloads.decoding.bf16_copy import bf16_copy
from workloads.decoding.decode_step import DecodeStep
from workloads.decoding.fused_model import fused
from workloads.decoding.sampling import GREEDY
from workloads.layers.cache import Cache
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.moe import Experts
from workloads.training import device as devices

KINDS = {"dense": dense, "moe": moe, "memory_plus": memory_plus}
VOCAB_SIZE = 32_000
TINY: dict[str, dict[str, Any]] = {
    "dense": {"d_ff": 128},
    "moe": {"d_expert": 128, "n_experts": 4, "top_k": 1},
    "memory_plus": {"d_ff": 128, "n_keys": 16, "knn": 4, "memory_layers": (1,)},
}


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    cuda = arguments.device == "cuda"
    print(
        f"{torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}, context {arguments.context}"
    )
    gbps = copy_gbps() if cuda else _cpu_copy_gbps()
    print(f"copy {gbps:.0f} GB/s\n")
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for kind in arguments.only.split(","):
            rows += _measured(kind, arguments, gbps)
    _print(rows)
    out = {
        "gpu": torch.cuda.get_device_name() if cuda else "cpu",
        "context": arguments.context,
        "copy_gbps": gbps,
        "rows": rows,
    }
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="decode_latency_"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "decode_latency.json").write_text(json.dumps(out, indent=1) + "\n")
    _attempt("figure", lambda: _figure(rows, folder / "decode_latency"))
    print(f"\nwritten into {folder}")
    if _failed:
        sys.exit(f"failed: {'; '.join(_failed)}")


def _measured(kind: str, arguments: argparse.Namespace, gbps: float) -> list[dict[str, Any]]:
    """Return a row per batch size; what fails is left out of its row."""
    config = _config(kind, tiny=arguments.tiny)
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "batch": int(batch),
            "stored_params": config.param_count(VOCAB_SIZE).total,
            "flops": config.flops_per_token(VOCAB_SIZE, arguments.context).total,
        }
        for batch in arguments.batches.split(",")
    ]
    model = _attempt(f"{kind}: model", lambda: _model(config, arguments.device))
    for row in rows if model is not None else []:
        start = time.perf_counter()
        found = _attempt(
            f"{kind}, batch {row['batch']}: ours",
            partial(_ours, model, row["batch"], config, arguments),
        )
        row |= found or {}
        if found:
            row["floor_ms"] = row["bytes"] / gbps / 1e6
        _log(
            f"{kind} {row['batch']}: ours {row.get('ms', float('nan')):.3f} ms ({time.perf_counter() - start:.0f} s)"
        )
    del model
    _free()
    plain = _attempt(
        f"{kind}: peer",
        lambda: PlainDecoder(kind, _shape(config, arguments.context), arguments.device),
    )
    for row in rows if plain is not None else []:
        start = time.perf_counter()
        row["peer_ms"] = _attempt(
            f"{kind}, batch {row['batch']}: peer", partial(_peer, plain, row["batch"], arguments)
        )
        _log(
            f"{kind} {row['batch']}: peer {row['peer_ms'] or float('nan'):.3f} ms ({time.perf_counter() - start:.0f} s)"
        )
    del plain
    _free()
    return rows


def _ours(
    model: nn.Module, batch: int, config: Any, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return the time of a step, and the bytes that it has to move."""
    here = torch.device(arguments.device)
    context, cuda = arguments.context, here.type == "cuda"
    autocast = partial(devices.autocast, bf16=cuda, device=here)
    cache = Cache(batch, context + 1, device=here)
    step = DecodeStep(fused(model) if arguments.fused else model, cache, GREEDY, autocast=autocast)
    if cuda:
        step.capture()
    prompts = torch.randint(VOCAB_SIZE, (batch, context - 1), device=here)
    with autocast():
        x = model.hidden(prompts, cache)
        step.read(model.logits(x[:, -1:])[:, 0])
    first = step.tokens.clone()
    with _touched(model) as touched, autocast():
        model(first, cache)
    cache.longest = context - 1

    def again() -> None:
        cache.lengths.fill_(context - 1)
        cache.longest = context - 1
        step.tokens.copy_(first)

    ms = _median_ms(step, again, cuda=cuda)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    for module in model.modules():
        # In their place, what is read of them.
        if isinstance(module, MemoryTable):
            weights -= module.weight.numel() * module.weight.element_size()
        elif isinstance(module, Experts):
            weights -= sum(p.numel() * p.element_size() for p in module.parameters())
    weights -= (len(model.embedding.weight) - batch) * model.embedding.weight[0].nbytes
    d_kv = config.attention.d_kv
    key_value = 2 * config.n_layers * batch * context * d_kv * (2 if cuda else 4)
    return {"ms": ms, "tokens_per_s": 1e3 * batch / ms, "bytes": weights + sum(touched) + key_value}


@contextmanager
def _touched(model: nn.Module) -> Iterator[list[int]]:
    """Yield a list that gets the bytes of the different rows, or experts, of each layer that reads some."""
    found: list[int] = []
    read_rows, work = MemoryTable.forward, Experts.forward

    def rows(self: MemoryTable, ids: Tensor, weights: Tensor) -> Tensor:
        found.append(ids.unique().numel() * self.weight[0].nbytes)
        return read_rows(self, ids, weights)

    def experts(self: Experts, x: Tensor, routes: Any) -> Tensor:
        each = sum(p[0].numel() * p.element_size() for p in self.parameters())
        found.append(int((routes.load > 0).sum()) * each)
        return work(self, x, routes)

    with patch.object(MemoryTable, "forward", rows), patch.object(Experts, "forward", experts):
        yield found


def _peer(plain: PlainDecoder, batch: int, arguments: argparse.Namespace) -> float:
    step, cuda = plain.step(batch), arguments.device == "cuda"
    return _median_ms(captured(step) if cuda else step, lambda: None, cuda=cuda)


def _median_ms(run: Callable[[], object], again: Callable[[], None], *, cuda: bool) -> float:
    """Return the median time of `run`, each after `again`, which is not counted."""
    if not cuda:
        again()
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    return median_ms(run, before=again, repeats=50)


def _config(kind: str, *, tiny: bool) -> Any:
    module = KINDS[kind]
    if tiny:
        return module.Config(d_model=64, n_layers=3, n_heads=4, **TINY[kind])
    return module.Config(**module.PRESETS["1.3b"])


def _model(config: Any, device: str) -> nn.Module:
    """Return a model with random weights, in bf16 on a GPU."""
    with torch.device(device):
        model = config.build(VOCAB_SIZE)
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point():
            value.fill_(1.0) if value.dim() < 2 and "bias" not in name else value.normal_(
                std=value.shape[-1] ** -0.5
            )
        else:
            value.zero_()
    if device == "cuda":
        for module in model.modules():
            if isinstance(module, MemoryTable):
                module.store_as(torch.bfloat16)
        model = bf16_copy(model)
    _free()
    return model.eval()


def _shape(config: Any, context: int) -> Shape:
    """Return the sizes of a peer like this; a dense one's experts and memories mean nothing."""
    memory = getattr(config, "memory", None)
    lookup = memory.lookup if memory is not None else None
    return Shape(
        d_model=config.d_model,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_ff=getattr(config, "d_expert", None) or config.d_ff,
        vocab_size=VOCAB_SIZE,
        context=context,
        n_experts=getattr(config, "n_experts", 0),
        n_keys=lookup.n_keys if lookup else 0,
        key_dim=lookup.key_dim if lookup else 0,
        n_memory_heads=lookup.n_heads if lookup else 0,
        knn=lookup.knn if lookup else 0,
        memory_layers=config.placement if lookup else (),
    )


_failed: list[str] = []
"""What was tried in vain."""


def _attempt(what: str, run: Callable[[], Any]) -> Any:
    """Return what `run` does, or None where it fails: the other rows are measured all the same."""
    try:
        return run()
    except Exception:
        _failed.append(what)
        print(f"FAILED {what}\n{traceback.format_exc()}", flush=True)
        return None


def _cpu_copy_gbps() -> float:
    source = torch.rand(2**22)
    target = torch.empty_like(source)
    ms = _median_ms(lambda: target.copy_(source), lambda: target.zero_(), cuda=False)
    return 2 * source.nbytes / ms / 1e6


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _log(text: str) -> None:
    print(text, flush=True)


def _print(rows: list[dict[str, Any]]) -> None:
    head = [
        "model",
        "stored",
        "GFLOP/token",
        "batch",
        "ms/token",
        "tokens/s",
        "floor ms",
        "x floor",
        "peer ms",
        "peer/ours",
        "over dense",
    ]
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    dense_ms = {row["batch"]: row.get("ms") for row in rows if row["kind"] == "dense"}
    for row in rows:
        ms, peer, floor = row.get("ms"), row.get("peer_ms"), row.get("floor_ms")
        base = dense_ms.get(row["batch"])
        cells = [
            row["kind"],
            f"{row['stored_params'] / 1e9:.2f}G",
            f"{row['flops'] / 1e9:.2f}",
            str(row["batch"]),
            _cell(ms, ".3f"),
            _cell(row.get("tokens_per_s"), ",.0f"),
            _cell(floor, ".3f"),
            _cell(ms and floor and ms / floor, ".2f"),
            _cell(peer, ".3f"),
            _cell(ms and peer and peer / ms, ".2f"),
            _cell(ms and base and ms / base, ".2f"),
        ]
        print("| " + " | ".join(cells) + " |")


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw latency and tokens per second against batch size, the floor dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for number, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
        mine = [row for row in rows if row["kind"] == kind and row.get("ms")]
        batch = [row["batch"] for row in mine]
        for axis, of in ((left, lambda ms, b: ms), (right, lambda ms, b: 1e3 * b / ms)):
            axis.plot(
                batch,
                [of(row["ms"], row["batch"]) for row in mine],
                "o-",
                color=f"C{number}",
                label=kind,
            )
            axis.plot(
                batch, [of(row["floor_ms"], row["batch"]) for row in mine], "--", color=f"C{number}"
            )
    left.set(
        xlabel="sequences at once", ylabel="ms a step", xscale="log", yscale="log", ylim=(0.1, None)
    )
    right.set(xlabel="sequences at once", ylabel="tokens a second", xscale="log", yscale="log")
    left.plot([], [], "--", color="grey", label="bytes / bandwidth")
    left.legend(frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=150)
    pyplot.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and batches")
    parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--batches", default=None)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument(
        "--out", type=Path, help="folder for the numbers and the figure; a temporary one by default"
    )
    arguments = parser.parse_args()
    arguments.batches = arguments.batches or ("1,3" if arguments.tiny else "1,4,16,64,256")
    return arguments


if __name__ == "__main__":
    main()

"""Milliseconds a decoded token of every architecture, at the sizes of its presets.

    python benchmarks/decode_architectures.py                      # all, at 3m, 10m and 30m
    python benchmarks/decode_architectures.py --only dense,engram --presets 3m

It is what `memscale evaluate --decode-latency` measures of trained models, here of initial values:
the time of a step depends on shapes, and hardly on values. The cache begins with 128 tokens. It
takes the GPU where there is one. An architecture that cannot be decoded token by token has the
reason in place of its times; one without such a preset is left out.
"""

import argparse
import dataclasses

import torch

from orchestrator.sweep import registry
from workloads.evaluation.decode_latency import DecodeLatency
from workloads.layers.modules.init import initialise
from workloads.training import device as devices
from workloads.training.trained_model import TrainedModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one architecture at one size; no times where there is a reason."""

    architecture: str
    preset: str
    total_params: int
    bytes_read: float
    """Weights and rows of one token decoded alone, in bf16."""
    ms: tuple[float, ...] = ()
    reason: str = ""


def main() -> None:
    arguments = _arguments()
    here = devices.pick("auto", rank=0)
    name = torch.cuda.get_device_name(here) if here.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, vocabulary {arguments.vocab_size:,}\n", flush=True)
    batches = tuple(arguments.batches)
    columns = " | ".join(f"ms, {batch} at once" for batch in batches)
    print(f"| architecture | preset | parameters | MB a token | {columns} |")
    print("|---" * (4 + len(batches)) + "|", flush=True)
    for preset in arguments.presets.split(","):
        for architecture in arguments.only:
            if preset in registry.architecture(architecture).PRESETS:
                row = _measured(architecture, preset, arguments.vocab_size, batches)
                _print(row, len(batches))


def _measured(architecture: str, preset: str, vocab_size: int, batches: tuple[int, ...]) -> Row:
    module = registry.architecture(architecture)
    config = module.Config(**module.PRESETS[preset])
    row = Row(
        architecture=architecture,
        preset=preset,
        total_params=config.param_count(vocab_size).total,
        bytes_read=sum(
            config.bytes_per_token(vocab_size, batch_tokens=1, element_bytes=2).values()
        ),
    )
    model = config.build(vocab_size)
    initialise(model, 0)
    untrained = TrainedModel(
        config=config,
        weights=model.state_dict(),
        tokenizer=None,
        vocab_size=vocab_size,
        seq_len=256,
        step=None,
    )
    try:
        metrics = DecodeLatency(batches=batches).measure(untrained)["metrics"]
    except ValueError as error:
        return dataclasses.replace(row, reason=str(error))
    times = tuple(metrics[f"eval/decode/ms_per_token_batch{batch}"] for batch in batches)
    return dataclasses.replace(row, ms=times)


def _print(row: Row, n_batches: int) -> None:
    size = f"{row.total_params / 1e6:.1f} M | {row.bytes_read / 1e6:.1f}"
    times = [f"{ms:.3f}" for ms in row.ms] or [row.reason, *[""] * (n_batches - 1)]
    print(f"| {row.architecture} | {row.preset} | {size} | {' | '.join(times)} |", flush=True)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=registry.architectures(),
        help="architectures, with commas between them (default: all)",
    )
    parser.add_argument("--presets", default="3m,10m,30m")
    parser.add_argument(
        "--batches",
        type=_numbers,
        default=[1, 64],
        help="numbers of sequences that are decoded together, with commas between them",
    )
    parser.add_argument("--vocab-size", type=int, default=8_192)
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.only} - {*registry.architectures()}):
        known = ", ".join(registry.architectures())
        parser.error(f"--only: no architecture {', '.join(unknown)}; there are {known}")
    presets = {name for each in arguments.only for name in registry.architecture(each).PRESETS}
    if unknown := sorted({*arguments.presets.split(",")} - presets):
        parser.error(f"--presets: none of these architectures has {', '.join(unknown)}")
    return arguments


if __name__ == "__main__":
    main()

"""Share of a device's peak in training: model FLOPs utilisation and bytes/s."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workloads.accounting.device_peaks import BF16_FLOPS_PER_S
from workloads.training.config import TrainConfig
from workloads.training.metrics.step_traffic import step_traffic
from workloads.training.rank_job import RankJob

MFU = "device/mfu_6n_causal_half"
"""Metric: training FLOPs per second over the bf16 peak of the GPUs that the trial uses, whole ones
also where it has a share. Counted are 6 FLOPs per token and parameter of a matrix product, the
head's too, 6 per number of the table rows read, and causal attention scores half
(`accounting/counts.py`). What is computed twice, to save memory, counts once."""
MODEL_BYTES = "device/model_bytes_per_s"
"""Metric: bytes of `step_traffic` per second, over all ranks."""
GPUS = "device/gpus"
"""Metric: GPUs that the trial holds, a fraction where it has a share of one."""
PEAK = "device/peak_bf16_flops_per_s"
"""Metric: data-sheet peak of one of these GPUs."""


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What a token costs, and what the devices reach at most."""

    flops_per_token: float
    """Forward and backward."""
    bytes_per_token: float
    """Of `step_traffic`."""
    micro_batch_tokens: int
    """Of a forward pass of a rank, the largest."""
    activation_checkpointing: bool
    """Whether blocks run again for the backward pass."""
    gpu_peaks: tuple[float, ...] = ()
    """FLOP/s of the GPUs, each once; none on a CPU, and where a data sheet is not known."""
    gpus: float | None = None
    """GPUs that the trial holds, or a fraction; None: all of these."""

    def metrics(self, tokens_per_s: float) -> dict[str, float]:
        """Return what training at a rate reaches, by metric."""
        found = {
            MODEL_BYTES: self.bytes_per_token * tokens_per_s,
            "device/micro_batch_tokens": float(self.micro_batch_tokens),
            "device/activation_checkpointing": float(self.activation_checkpointing),
        }
        if self.gpu_peaks:
            n = len(self.gpu_peaks)
            found[MFU] = self.flops_per_token * tokens_per_s / sum(self.gpu_peaks)
            found[GPUS] = float(n if self.gpus is None else self.gpus)
            found[PEAK] = sum(self.gpu_peaks) / n
        return found


def device_use(
    architecture: Any,
    vocab_size: int,
    train: TrainConfig,
    job: RankJob,
    *,
    bf16: bool,
    passes: int,
    activation_checkpointing: bool,
    gpus: Sequence[str],
) -> DeviceUse:
    """Return what a trial's tokens cost on its devices.

    Args:
        architecture: Its Config.
        vocab_size: Token ids.
        train: Batch, sequence, and how tables are updated.
        job: How ranks share tables and dense parameters, and what they hold of the GPUs.
        bf16: Whether matrix products run in bf16.
        passes: Forward passes of a rank and step.
        activation_checkpointing: Whether blocks run again for the backward pass.
        gpus: Product names of the GPUs that the ranks use, each once.
    """
    traffic = step_traffic(
        architecture,
        vocab_size,
        train,
        precision="bf16" if bf16 else "fp32",
        passes=passes,
        ranks=job.world_size,
        memory_ranks=job.memory_ranks,
        dense_sharded=job.dense_parameters == "sharded",
    )
    rows = -(-train.sequences_per_step // (job.world_size * passes))
    known = all(name in BF16_FLOPS_PER_S for name in gpus)
    return DeviceUse(
        flops_per_token=3.0 * architecture.flops_per_token(vocab_size, train.seq_len).total,
        bytes_per_token=traffic.total / train.batch_tokens,
        micro_batch_tokens=train.seq_len * rows,
        activation_checkpointing=activation_checkpointing,
        gpu_peaks=tuple(map(BF16_FLOPS_PER_S.__getitem__, gpus)) if known else (),
        gpus=job.gpus,
    )

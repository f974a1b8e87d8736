"""Latency of greedy decoding: milliseconds per token, one and many sequences."""

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from workloads.decoding.decoder import Decoder
from workloads.evaluation.record import record
from workloads.evaluation.task_result import Progress, TaskResult, silent
from workloads.sharding.fsdp import only_forward
from workloads.training import device
from workloads.training.trained_model import TrainedModel

TASK = "decode"


@dataclass(frozen=True, kw_only=True)
class DecodeLatency:
    """What is timed; random tokens stand for text, so no tokenizer is needed."""

    name: ClassVar[str] = "decode latency"
    needs_text: ClassVar[bool] = False
    batches: tuple[int, ...] = (1, 64)
    """Sequences that are decoded together."""
    context: int = 128
    """Tokens in the cache when a run begins, at most; half of a shorter model's `seq_len`."""
    n_steps: int = 16
    """Steps of a run, after which the host waits for the device."""
    n_runs: int = 9

    @property
    def task_names(self) -> tuple[str, ...]:
        """The one task."""
        return (TASK,)

    @property
    def digest(self) -> str:
        """SHA-256 over what is timed and the device on which this process would do it."""
        here = device.pick("auto", rank=0)
        name = torch.cuda.get_device_name(here) if here.type == "cuda" else "cpu"
        return hashlib.sha256(repr((self, name, torch.__version__)).encode()).hexdigest()

    def measure(
        self,
        trained: TrainedModel,
        progress: Progress = silent,
        *,
        precision: str = "auto",
        clock: Callable[[], float] = time.time,
    ) -> dict[str, Any]:
        """Return the record of a trained model: `eval/decode/ms_per_token_batch1` and so on.

        A metric is the median over runs of the milliseconds of a step, which adds one token to
        every sequence; its standard error is that of a median of normal values. Steps are those of
        `memscale generate`: on a GPU a CUDA graph where that can be done.

        Args:
            trained: The model.
            progress: Told the task, and how many runs of how many are done.
            precision: auto, fp32 or bf16, as in training.
            clock: Seconds since 1970.
        """
        start = clock()
        metrics: dict[str, float] = {}
        with device.for_inference("auto", precision) as (here, bf16):
            decoder = Decoder(trained.build(here), bf16=bf16)
            for number, batch in enumerate(self.batches):
                times = self._times_ms(decoder, batch, trained, here)
                metrics |= _median(f"ms_per_token_batch{batch}", times)
                progress(TASK, number + 1, len(self.batches))
        result = TaskResult(task=TASK, n=self.n_runs, metrics=metrics, chance=None, n_truncated=0)
        return record([result], start=start, end=clock(), digest=self.digest, step=trained.step)

    def _times_ms(
        self, decoder: Decoder, batch: int, trained: TrainedModel, here: torch.device
    ) -> list[float]:
        """Return the milliseconds of a step in each run, the first one left out."""
        context = max(1, min(self.context, trained.seq_len // 2))
        n_steps = max(1, min(self.n_steps, trained.seq_len - context))
        generator = torch.Generator().manual_seed(0)
        prompts = torch.randint(trained.vocab_size, (batch, context), generator=generator).tolist()
        times = []
        with only_forward(decoder.model):
            for _ in range(self.n_runs + 1):
                step = decoder.step_after(prompts, n_steps)
                device.synchronize(here)
                start = time.perf_counter()
                for _ in range(n_steps):
                    step()
                device.synchronize(here)
                times.append(1e3 * (time.perf_counter() - start) / n_steps)
        return times[1:]


def _median(name: str, values: list[float]) -> dict[str, float]:
    error = 1.2533 * statistics.stdev(values) / len(values) ** 0.5
    return {name: statistics.median(values), f"{name}_stderr": error}

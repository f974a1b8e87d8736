"""System metrics of a trial: CPU and memory of its processes, use of its GPUs."""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from orchestrator.node.hardware import nvml_handles


class SystemSampler:
    """Samples what a trial uses of its machine.

    Made once per trial; cheap to call every few seconds (no CUDA context, no thread).
    """

    def __init__(
        self,
        *,
        gpus: Sequence[str] = (),
        whole_gpus: bool = True,
        pids: Sequence[int] | None = None,
        every_s: float = 10.0,
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the devices; the first sample's rates are over the time since then.

        Args:
            gpus: The GPUs of this trial: indices as nvidia-smi counts, or UUIDs.
            whole_gpus: Whether nobody else uses them. On a shared GPU only what can be told apart
                is reported.
            pids: Processes of the trial, which count with their descendants. Default: this one.
            every_s: Seconds between two samples of `sample_when_due`.
            nvml: A module with pynvml's functions; default pynvml, where it is installed.
            clock: Monotonic seconds.
        """
        self._pids = tuple(pids) if pids is not None else (os.getpid(),)
        self._whole_gpus = whole_gpus
        self._every_s = every_s
        self._clock = clock
        self._nvml: Any
        self._nvml, self._handles = nvml_handles(gpus, nvml) if gpus else (None, [])
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self._sampled_at = clock()
        self._cpu_seconds_since()

    def sample_when_due(self) -> dict[str, float]:
        """Return a sample if the last one is old enough, else nothing.

        A sample looks through all processes.
        """
        return self.sample() if self._clock() - self._sampled_at >= self._every_s else {}

    def sample(self) -> dict[str, float]:
        """Return what is known, by name. What cannot be found out is left out.

        system/cpu_cores: Cores busy on average since the last sample.
        system/rss_bytes: Resident memory.
        system/gpu_utilization: Share of the time in which a kernel ran, 0 to 1, mean over the GPUs.
        system/gpu_memory_bytes: Memory used on them, by this trial.
        system/gpu_power_w: Power drawn by them.
        """
        now = self._clock()
        busy_s, rss_bytes = self._cpu_seconds_since()
        metrics = {"system/rss_bytes": float(rss_bytes)}
        if now > self._sampled_at:
            metrics["system/cpu_cores"] = busy_s / (now - self._sampled_at)
        self._sampled_at = now
        return {**metrics, **self._gpu_metrics()}

    def _processes(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for pid in self._pids:
            try:
                process = psutil.Process(pid)
                for each in (process, *process.children(recursive=True)):
                    found[each.pid] = each
            except psutil.Error:
                continue
        return list(found.values())

    def _cpu_seconds_since(self) -> tuple[float, int]:
        """Return CPU seconds since the last call and resident bytes now, over all processes."""
        busy_s, rss_bytes = 0.0, 0
        seen: dict[tuple[int, float], float] = {}
        for process in self._processes():
            try:
                with process.oneshot():
                    name = (process.pid, process.create_time())
                    times = process.cpu_times()
                    rss_bytes += process.memory_info().rss
            except psutil.Error:
                continue  # it ended while it was looked at
            seen[name] = times.user + times.system
            # A process that is new since the last sample spent all of its time since then.
            busy_s += seen[name] - self._cpu_seconds.get(name, 0.0)
        self._cpu_seconds = seen
        return busy_s, rss_bytes

    def _gpu_metrics(self) -> dict[str, float]:
        if not self._handles:
            return {}
        nvml, handles = self._nvml, self._handles
        read: dict[str, Callable[[], float]] = {"system/gpu_memory_bytes": self._gpu_memory}
        if self._whole_gpus:
            read["system/gpu_utilization"] = lambda: (
                math.fsum(nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles)
                / (100 * len(handles))
            )
            read["system/gpu_power_w"] = lambda: (
                math.fsum(nvml.nvmlDeviceGetPowerUsage(handle) for handle in handles) / 1000
            )
        metrics = {}
        for name, function in read.items():
            try:
                value = function()
            except nvml.NVMLError:
                continue  # not every device and driver tells everything
            if not math.isnan(value):
                metrics[name] = float(value)
        return metrics

    def _gpu_memory(self) -> float:
        """Return bytes used on the GPUs, NaN where they cannot be told from another trial's."""
        if self._whole_gpus:
            return math.fsum(self._nvml.nvmlDeviceGetMemoryInfo(h).used for h in self._handles)
        own = {process.pid for process in self._processes()}
        found = [
            process.usedGpuMemory
            for handle in self._handles
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.pid in own and process.usedGpuMemory is not None
        ]
        # In a container NVML names processes by pids of the host: none of them is known here.
        return math.fsum(found) if found else math.nan

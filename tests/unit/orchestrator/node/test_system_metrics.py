"""The sampler: a trial's own use and nobody else's."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from orchestrator.node.system_metrics import SystemSampler


class FakeNvml:
    """pynvml over two GPUs; processes of this trial and of another one on both."""

    class NVMLError(Exception):
        pass

    def __init__(self, own_pid, *, silent=()):
        self.silent = silent
        self.own_pid = own_pid

    def nvmlInit(self):
        if "init" in self.silent:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-b": 1}[uuid]

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=[40, 80][handle])

    def nvmlDeviceGetPowerUsage(self, handle):
        if "power" in self.silent:
            raise self.NVMLError("not supported")
        return [100_000, 300_000][handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=[5_000, 7_000][handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        pids = (
            [(4_194_304, 900)] if "own" in self.silent else [(self.own_pid, 300), (4_194_304, 900)]
        )
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in pids]


@pytest.fixture
def child():
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; x = bytearray(50_000_000); print(flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    yield process
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_memory_of_a_trial_is_that_of_its_processes_and_their_children(child):
    whole = SystemSampler().sample()["system/rss_bytes"]
    part = SystemSampler(pids=[child.pid]).sample()["system/rss_bytes"]

    assert part > 50_000_000
    assert whole > part


def test_processor_time_is_a_rate_since_the_last_sample():
    times = iter([0.0, 1000.0, 1000.0])
    sampler = SystemSampler(clock=lambda: next(times))
    sum(range(2_000_000))

    metrics = sampler.sample()

    assert 0 < metrics["system/cpu_cores"] < 1
    # No time has passed by this clock: there is no rate.
    assert "system/cpu_cores" not in sampler.sample()


def test_samples_come_when_they_are_due():
    now = [0.0]
    sampler = SystemSampler(every_s=10.0, clock=lambda: now[0])
    due = []
    for now[0] in range(0, 31, 4):
        due.append(bool(sampler.sample_when_due()))

    assert due == [False, False, False, True, False, False, True, False]


def test_processes_that_are_gone_do_not_matter(child):
    sampler = SystemSampler(pids=[child.pid, 4_194_303])
    child.kill()
    child.wait()

    assert sampler.sample()["system/rss_bytes"] == 0


def test_only_the_gpus_held_are_counted():
    one = SystemSampler(gpus=["GPU-b"], nvml=FakeNvml(os.getpid())).sample()
    both = SystemSampler(gpus=["0", "1"], nvml=FakeNvml(os.getpid())).sample()

    assert one["system/gpu_utilization"] == 0.8
    assert one["system/gpu_memory_bytes"] == 7_000
    assert one["system/gpu_power_w"] == 300
    assert both["system/gpu_utilization"] == pytest.approx(0.6)
    assert both["system/gpu_memory_bytes"] == 12_000


def test_on_a_shared_gpu_only_own_memory_is_told():
    metrics = SystemSampler(gpus=["0"], whole_gpus=False, nvml=FakeNvml(os.getpid())).sample()

    assert metrics["system/gpu_memory_bytes"] == 300
    assert {"system/gpu_utilization", "system/gpu_power_w"}.isdisjoint(metrics)


def test_what_cannot_be_told_apart_is_left_out():
    nvml = FakeNvml(os.getpid(), silent=("own", "power"))

    assert (
        "system/gpu_memory_bytes"
        not in SystemSampler(gpus=["0"], whole_gpus=False, nvml=nvml).sample()
    )
    assert "system/gpu_power_w" not in SystemSampler(gpus=["0"], nvml=nvml).sample()


@pytest.mark.parametrize("gpus", [(), ("0",)])
def test_without_gpus_or_driver_the_rest_is_told(gpus):
    metrics = SystemSampler(gpus=gpus, nvml=FakeNvml(os.getpid(), silent=("init",))).sample()

    assert set(metrics) <= {"system/rss_bytes", "system/cpu_cores"}
    assert metrics["system/rss_bytes"] > 0

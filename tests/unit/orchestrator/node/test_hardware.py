from types import SimpleNamespace

import pytest

from orchestrator.node import hardware


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_quota_of_a_container(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert hardware._cgroup_cores(tmp_path, tmp_path / "no /proc") == cores


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/a.slice/b", {"a.slice/b/cpu.max": "100000 100000"}, 1.0),
        ("0::/a.slice/b", {"a.slice/cpu.max": "50000 100000", "a.slice/b/cpu.max": "max 1"}, 0.5),
        ("0::/a.slice/b", {"cpu.max": "2 1", "a.slice/cpu.max": "3 1", "else/cpu.max": "1 1"}, 2.0),
        # The path is the host's and the files are the container's.
        ("0::/docker/1f2e", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/../b", {"cpu.max": "max 100000"}, None),
        (
            "9:memory:/m\n4:cpu,cpuacct:/job/step\n1:name=systemd:/s\n0::/",
            {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"},
            3.0,
        ),
    ],
)
def test_quotas_of_the_own_cgroup_and_its_parents_count(tmp_path, own, files, cores):
    (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")

    assert hardware._cgroup_cores(tmp_path / "fs", tmp_path / "own") == cores


@pytest.mark.parametrize(("quota", "usable"), [(None, 4), (1.5, 1), (0.2, 1), (64.0, 4)])
def test_cores_are_those_of_the_affinity_and_the_quota(monkeypatch, quota, usable):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(hardware, "_cgroup_cores", lambda: quota)

    assert hardware.usable_cores() == usable


@pytest.mark.parametrize(
    ("variable", "gpus"),
    [("2,3", ("2", "3")), ("", ()), ("-1", ()), ("GPU-8f1c, GPU-99aa", ("GPU-8f1c", "GPU-99aa"))],
)
def test_chosen_gpus_keep_their_ids(tmp_path, variable, gpus):
    assert hardware.visible_gpus({"CUDA_VISIBLE_DEVICES": variable}, tmp_path) == gpus


def test_gpus_are_counted_by_their_device_files(tmp_path):
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()

    assert hardware.visible_gpus({}, tmp_path) == ("0", "1")


class Nvml:
    """Two GPUs of different memory; the third one's driver does not answer."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return 1

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=(80, 40)[handle], used=3)


@pytest.mark.parametrize(
    ("gpus", "memory"), [((), None), (("0",), 80), (("0", "GPU-1a2b"), 40), (("0", "2"), None)]
)
def test_gpu_memory_is_that_of_the_smallest(gpus, memory):
    assert hardware.gpu_memory_bytes(gpus, Nvml()) == memory


def test_a_rank_on_gpus_gets_a_fixed_workspace_unless_the_user_chose_one(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    on_gpus, on_cpu = hardware.gpu_environment(("1", "3")), hardware.gpu_environment(())
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")

    assert on_gpus == {"CUDA_VISIBLE_DEVICES": "1,3", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert on_cpu == {"CUDA_VISIBLE_DEVICES": ""}
    assert hardware.gpu_environment(("2",)) == {"CUDA_VISIBLE_DEVICES": "2"}


def test_gloo_and_nccl_are_told_the_interface_of_an_address(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "mine")

    loopback = hardware.network_environment("127.0.0.1")

    assert loopback == {"GLOO_SOCKET_IFNAME": "lo"}
    assert hardware.network_environment("203.0.113.99") == {}
    assert hardware.network_environment(None) == {}

"""A Ray cluster of several hosts on one machine: network namespaces joined by a bridge.

Each has a host name of its own. What `ray.cluster_utils.Cluster` cannot show: processes of another
host that may not be looked up by their pid, and a host that nobody reaches while all on it goes on
running. This process is the first host and takes the head. Only its own processes hold the others'
namespaces, so that nothing is left of them when it ends, however it ends.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from orchestrator.records.processes import pids_writing_below

NETWORK = "10.77.0"
PORT = 6379
BRIDGE, UPLINK = "chaosbr", "chaos0"
HEALTH = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}
"""A silent host is dead after about six seconds; Ray's own 15 to 30 would be most of the test."""
UP_S = 120.0
"""How long a node may take to come up on a busy machine."""


def enter() -> str | None:
    """Give this process a network and a host name of its own; return why not, if not allowed.

    To be called by a program that has started no thread yet.
    """
    if shutil.which("ip") is None or shutil.which("setpriv") is None:
        return "iproute2 and util-linux are not installed"
    new_network, new_names = 0x40000000, 0x04000000
    if ctypes.CDLL(None, use_errno=True).unshare(new_network | new_names) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    try:
        socket.sethostname("host-0")
        _ip("link", "set", "lo", "up")
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        _ip("link", "add", "chaosv", "type", "veth", "peer", "name", "chaosw")
        _ip("link", "del", "chaosv")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no bridge of virtual networks can be made: {error}"
    return None


def _ip(*words: str, inside: int | None = None) -> None:
    subprocess.run([*_inside(inside), "ip", *words], check=True, capture_output=True)


def _inside(pid: int | None) -> list[str]:
    return [] if pid is None else ["nsenter", "--target", str(pid), "--net", "--uts", "--"]


@dataclass(kw_only=True)
class Host:
    """One of the hosts; the first is this process's own."""

    number: int
    holder: subprocess.Popen[bytes] | None = None
    """Whose namespaces these are; None: ours."""
    node: subprocess.Popen[bytes] | None = None
    """`ray start --block`, while a node runs here."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"host-{self.number}"

    @property
    def ip(self) -> str:
        return f"{NETWORK}.{self.number + 1}"

    @property
    def link(self) -> str:
        """Its end at the bridge."""
        return f"chaos-h{self.number}"

    @property
    def inside(self) -> list[str]:
        """What a command begins with to run here."""
        return _inside(self.holder and self.holder.pid)

    def join_bridge(self) -> None:
        """Make a host of the holder's namespaces."""
        assert self.holder is not None
        pid = self.holder.pid
        ours = Path("/proc/self/ns/net").readlink()
        # unshare changes namespaces, and only then becomes what holds them.
        _until(lambda: Path(f"/proc/{pid}/ns/net").readlink() != ours, "namespaces")
        _until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), "namespaces")
        subprocess.run([*self.inside, "hostname", self.name], check=True)
        peer = ("peer", "name", UPLINK, "netns", str(pid))
        _ip("link", "add", self.link, "type", "veth", *peer)
        _ip("link", "set", self.link, "master", BRIDGE)
        _ip("link", "set", self.link, "up")
        _ip("link", "set", "lo", "up", inside=pid)
        _ip("addr", "add", f"{self.ip}/24", "dev", UPLINK, inside=pid)
        _ip("link", "set", UPLINK, "up", inside=pid)


class Hosts:
    """A Ray cluster with a node of two cores on each host. The last host's clock is wrong."""

    def __init__(self, nodes: int, *, ahead_s: float) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mc-"))
        self.hosts = [Host(number=0)]
        try:
            for number in range(1, nodes):
                holder = subprocess.Popen(
                    [
                        "setpriv",
                        "--pdeathsig",
                        "KILL",
                        *["unshare", "--net", "--uts", "sleep", "infinity"],
                    ]
                )
                host = Host(number=number, holder=holder)
                self.hosts.append(host)
                host.join_bridge()
            self.hosts[-1].environment = {"CHAOS_AHEAD_S": str(ahead_s)}
            for host in self.hosts:
                self._start(host)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of the cluster."""
        return f"{self.hosts[0].ip}:{PORT}"

    def _start(self, host: Host) -> None:
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
            if host.holder is None
            else [f"--address={self.address}"]
        )
        log = (self.folder / f"{host.name}.log").open("ab")
        with log:
            host.node = subprocess.Popen(
                [
                    *host.inside,
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                    *(*where, f"--node-ip-address={host.ip}", "--num-cpus=2", "--num-gpus=0"),
                    *("--object-store-memory=80000000", "--disable-usage-stats"),
                ],
                env={**os.environ, **HEALTH, **host.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _until(lambda: self._up(host), f"a node on {host.name}")

    def _up(self, host: Host) -> bool:
        assert host.node is not None
        if host.node.poll() is not None:
            raise RuntimeError((self.folder / f"{host.name}.log").read_text()[-2000:])
        return b"Ray runtime started" in (self.folder / f"{host.name}.log").read_bytes()

    def raylets(self) -> list[int]:
        """Return the pids of the raylets of all hosts but the first."""
        found = [self._raylet(host) for host in self.hosts[1:]]
        return [raylet.pid for raylet in found if raylet is not None]

    def _raylet(self, host: Host) -> psutil.Process | None:
        for process in _tree(host):
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet":
                    return process
        return None

    def host_of(self, raylet: int) -> Host:
        """Return where a raylet runs."""
        for host in self.hosts:
            found = self._raylet(host)
            if found is not None and found.pid == raylet:
                return host
        raise ValueError(f"no host has a raylet {raylet}")

    def kill_raylet(self, pid: int) -> None:
        """Kill a raylet alone: what depends on it must end by itself. Its host joins again."""
        host = self.host_of(pid)
        os.kill(pid, signal.SIGKILL)
        self._again(host)

    def cut(self, pid: int, *, seconds: float) -> None:
        """Cut a raylet's host off for a while; what runs there goes on. Then it joins again."""
        host = self.host_of(pid)
        _ip("link", "set", host.link, "down")
        time.sleep(seconds)
        _ip("link", "set", host.link, "up")
        self._again(host)

    def _again(self, host: Host) -> None:
        """Wait until a node has noticed that it is dead; restart it, as an operator would."""
        assert host.node is not None
        _until(lambda: host.node.poll() is not None, f"the end of the node on {host.name}")
        (self.folder / f"{host.name}.log").unlink()
        self._start(host)

    def kill_head(self) -> None:
        """Kill every process of the head at once."""
        _kill(_tree(self.hosts[0]))

    def close(self) -> None:
        """End every process of every host, and with them their networks."""
        for host in reversed(self.hosts):
            _kill(_tree(host))
            for process in (host.node, host.holder):
                if process is not None:
                    process.kill()
                    process.wait()
        _until(lambda: not _kill([psutil.Process(p) for p in _writing(self.folder)]), "Ray's end")
        shutil.rmtree(self.folder, ignore_errors=True)


def _writing(folder: Path) -> list[int]:
    return [pid for pid in pids_writing_below(folder) if psutil.pid_exists(pid)]


def _tree(host: Host) -> Iterator[psutil.Process]:
    """Yield what `ray start --block` has started on a host, and it itself."""
    if host.node is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(host.node.pid)
        yield from top.children(recursive=True)
        yield top


def _kill(processes: Any) -> list[psutil.Process]:
    found = list(processes)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return found


def _until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + UP_S
    while not look():
        assert time.monotonic() < deadline, f"not within {UP_S:.0f} s: {what}"
        time.sleep(0.05)

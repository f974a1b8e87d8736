"""Commands of Slurm, with plain values in and out; `submitit_adapter.py` submits."""

import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address

from orchestrator.records.errors import ExperimentError
from orchestrator.records.units import plural

NEEDED = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
TIMEOUT_S = 60.0
"""How long Slurm's controller may take: a busy one answers late, one that is down not at all."""

DEFAULTS_OF_A_SHELL = ("SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_")
"""Prefixes of variables that change what the commands print or which jobs they mean."""


class SlurmError(ExperimentError):
    """Slurm is not installed, does not answer, or refuses."""


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Nodes of one partition that offer the same."""

    cpus: int
    """Of each node."""
    gpus_by_type: Mapping[str, int]
    """Of each node; those without a type stand under the empty name."""
    nodes: int
    """How many there are."""

    @property
    def gpus(self) -> int:
        """Of each node, whatever their type."""
        return sum(self.gpus_by_type.values())

    def __str__(self) -> str:
        parts = [plural(self.cpus, "core")]
        parts += [plural(n, f"{name} GPU".strip()) for name, n in self.gpus_by_type.items()]
        return f"{plural(self.nodes, 'node')} of {' and '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class Partition:
    """What a partition offers."""

    name: str
    default: bool
    kinds: tuple[NodeKind, ...]

    def kinds_with(self, *, cpus: int = 0, gpus: int = 0) -> tuple[NodeKind, ...]:
        """Return the kinds of nodes that have so many cores and GPUs at least."""
        return tuple(kind for kind in self.kinds if kind.cpus >= cpus and kind.gpus >= gpus)

    def with_gpu_type(self, name: str) -> "Partition":
        """Return what it offers to jobs that ask for GPUs of one type: the others do not count."""
        kinds = (
            replace(kind, gpus_by_type={t: n for t, n in kind.gpus_by_type.items() if t == name})
            for kind in self.kinds
        )
        return replace(self, kinds=tuple(kinds))

    @property
    def most_gpus(self) -> int:
        """GPUs of the node that has most."""
        return max(kind.gpus for kind in self.kinds)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(kind.nodes for kind in self.kinds)

    def __str__(self) -> str:
        return f"partition {self.name} has {', '.join(map(str, self.kinds))}"


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job, or one task of an array, that Slurm has not forgotten yet."""

    job_id: str
    """`12`, or `12_3` for task 3 of the array 12."""
    state: str
    """PENDING, RUNNING, COMPLETING …"""
    reason: str
    """Why it does not run: Priority, Resources … `None` when it runs."""
    nodes: str = ""
    """Names of its nodes as Slurm writes them, `n1` or `n[1-2]`; empty while it waits."""


def require() -> None:
    """Check that Slurm's commands are there.

    Raises:
        SlurmError: If not; says which and what to do.
    """
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise SlurmError(
            f"--backend slurm: {', '.join(missing)} not found on PATH; submit from a login node "
            "of the cluster (often `module load slurm`), or leave --backend out to train on this "
            "machine"
        )


def partitions() -> dict[str, Partition]:
    """Return the partitions by name."""
    return parse_partitions(_run("sinfo", "-h", "-e", "-o", "%P|%D|%c|%G"))


def parse_partitions(text: str) -> dict[str, Partition]:
    """Read `sinfo -o %P|%D|%c|%G`: one line for each kind of node of each partition."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        name, n_nodes, n_cpus, gres = line.strip().split("|")
        kind = NodeKind(
            cpus=int(n_cpus.rstrip("+")), gpus_by_type=_gpus_by_type(gres), nodes=int(n_nodes)
        )
        known = found.get(name.removesuffix("*"))
        made = Partition(
            name=name.removesuffix("*"),
            default=name.endswith("*"),
            kinds=(*(known.kinds if known else ()), kind),
        )
        found[made.name] = made
    return found


def _gpus_by_type(gres: str) -> dict[str, int]:
    """Return {"": 4} for `gpu:4`, {"a100": 8} for `gpu:a100:8(S:0-1),nvme:1`."""
    found: Counter[str] = Counter()
    for name, n in re.findall(r"(?:^|,)gpu:(?:([^:,(]+):)?(\d+)", gres):
        found[name] += int(n)
    return dict(+found)  # without those of which there are none


def partition(name: str | None) -> Partition:
    """Return a partition, the default one without a name.

    Raises:
        SlurmError: If there is none of that name; lists those there are.
    """
    known = partitions()
    there = ", ".join(f"{p.name} (default)" if p.default else p.name for p in known.values())
    if name is None:
        chosen = next((p for p in known.values() if p.default), None)
        if chosen is None:
            raise SlurmError(
                f"--partition: this cluster has no default; choose one of: {there or 'none'}"
            )
        return chosen
    if name not in known:
        raise SlurmError(f"--partition {name}: unknown; there are: {there or 'none'}")
    return known[name]


def max_array_size() -> int:
    """Return how many tasks an array may have."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run("scontrol", "show", "config"), re.M)
    return int(found[1]) if found else 1001


def queued(job_ids: Collection[str]) -> dict[str, Queued]:
    """Return those of these jobs, and tasks of these arrays, that wait, run or are ending.

    Args:
        job_ids: Ids without the numbers of tasks.
    """
    if not job_ids:
        return {}
    # By user, not by id: an id that Slurm has forgotten would be an error.
    return {name: job for name, job in _queue().items() if name.partition("_")[0] in job_ids}


def _queue() -> dict[str, Queued]:
    """Return all jobs of this user."""
    return parse_queue(_run("squeue", "-h", "-r", "-u", str(os.getuid()), "-o", "%i|%T|%N|%r"))


def parse_queue(text: str) -> dict[str, Queued]:
    """Read `squeue -r -o %i|%T|%N|%r`."""
    found = {}
    for line in text.splitlines():
        job_id, state, nodes, reason = line.strip().split("|", 3)
        found[job_id] = Queued(job_id=job_id, state=state, reason=reason, nodes=nodes)
    return found


def cancel(job_ids: Collection[str]) -> None:
    """End jobs; those that are over are no error."""
    if job_ids:
        _run("scancel", "--quiet", *job_ids)


def requeue(job_id: str) -> None:
    """Put a running job back into the queue; its processes are ended."""
    _run("scontrol", "requeue", job_id)


def state(job_id: str) -> str:
    """Return the state of a job that exists, empty when Slurm does not know it any more."""
    job = _queue().get(job_id)
    return "" if job is None else job.state


def node_address(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address by which other nodes reach this one.

    That is what the name that Slurm knows stands for, or the host's own name where `scontrol` does
    not answer. A node may map these to its loopback interface, as Debian does. Then it is the
    address of the interface that leads to the other nodes.

    Raises:
        SlurmError: If neither name stands for an address.
    """
    here = [
        address
        for name in (_slurm_name(environment.get("SLURMD_NODENAME")), socket.gethostname())
        for address in _addresses(name)
    ]
    for address in here:
        if not _is_loopback(address):
            return address
    for address in _towards_other_nodes():
        if not _is_loopback(address):
            return address
    if here:  # all nodes are on one machine
        return here[0]
    raise SlurmError(
        f"node {socket.gethostname()}: its name stands for no address, so other nodes cannot reach "
        "it; add it to DNS or to /etc/hosts of the nodes"
    )


def _slurm_name(node: str | None) -> str | None:
    """Return the address or name by which Slurm reaches a node, None if it does not say."""
    if node is None:
        return None
    try:
        found = re.search(r"NodeAddr=(\S+)", _run("scontrol", "show", "node", node))
    except SlurmError:
        return node
    return found[1] if found else node


def _towards_other_nodes() -> Iterator[str]:
    """Yield the addresses of this machine's interfaces that lead to the cluster's nodes."""
    try:
        names = _run("sinfo", "-h", "-N", "-o", "%o").split()
    except SlurmError:
        return
    for name in dict.fromkeys(names):
        for address in _addresses(name):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            # Connecting UDP sends nothing; it only chooses the route.
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                own: str = probe.getsockname()[0]
                yield own


def _addresses(name: str | None) -> list[str]:
    """Return the addresses that a name stands for here, IPv4 first; none if it is unknown."""
    if name is None:
        return []
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return [str(one[4][0]) for one in found]


def _is_loopback(address: str) -> bool:
    return ip_address(address.partition("%")[0]).is_loopback


def _run(*words: str) -> str:
    """Run a command and return what it prints.

    Raises:
        SlurmError: If it is not there, fails, or does not answer in time.
    """
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={k: v for k, v in os.environ.items() if not k.startswith(DEFAULTS_OF_A_SHELL)},
        )
    except FileNotFoundError:
        raise SlurmError(f"{words[0]}: not found on PATH; is this a node of the cluster?") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{' '.join(words)}: no answer in {TIMEOUT_S:.0f} s; is slurmctld down? "
            "(`scontrol ping`)"
        ) from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SlurmError(
            f"{' '.join(words[:2])}: {said[-1] if said else f'exit code {done.returncode}'}; "
            "does `scontrol ping` answer on this machine? Without a Slurm cluster leave --backend "
            "out"
        )
    return done.stdout

"""Commands of Slurm, with plain values in and out; `submitit_adapter.py` submits."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from orchestrator.records.errors import ExperimentError

NEEDED = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
TIMEOUT_S = 60.0
"""How long Slurm's controller may take: a busy one answers late, one that is down not at all."""


class SlurmError(ExperimentError):
    """Slurm is not installed, does not answer, or refuses."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """What a partition offers."""

    name: str
    default: bool
    cpus: int
    """Of its smallest node."""
    gpus: int
    """Of its best node."""
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job, or one task of an array, that Slurm has not forgotten yet."""

    job_id: str
    """`12`, or `12_3` for task 3 of the array 12."""
    state: str
    """PENDING, RUNNING, COMPLETING …"""
    reason: str
    """Why it does not run: Priority, Resources … `None` when it runs."""


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
        kind = Partition(
            name=name.removesuffix("*"),
            default=name.endswith("*"),
            cpus=int(n_cpus.rstrip("+")),
            gpus=_gpus(gres),
            nodes=int(n_nodes),
        )
        if other := found.get(kind.name):
            cpus, gpus = min(kind.cpus, other.cpus), max(kind.gpus, other.gpus)
            kind = replace(kind, cpus=cpus, gpus=gpus, nodes=kind.nodes + other.nodes)
        found[kind.name] = kind
    return found


def _gpus(gres: str) -> int:
    """Return the GPUs in `gpu:4`, `gpu:a100:8(S:0-1),nvme:1`; 0 for `(null)`."""
    return sum(int(n) for n in re.findall(r"(?:^|,)gpu:(?:[^:,(]+:)?(\d+)", gres))


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
    return parse_queue(_run("squeue", "-h", "-r", "-u", str(os.getuid()), "-o", "%i|%T|%r"))


def parse_queue(text: str) -> dict[str, Queued]:
    """Read `squeue -r -o %i|%T|%r`."""
    found = {}
    for line in text.splitlines():
        job_id, state, reason = line.strip().split("|", 2)
        found[job_id] = Queued(job_id=job_id, state=state, reason=reason)
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
    """Return the address by which other nodes reach this one, as Slurm knows it."""
    name = environment.get("SLURMD_NODENAME")
    found = re.search(r"NodeAddr=(\S+)", _run("scontrol", "show", "node", name)) if name else None
    return socket.gethostbyname(found[1] if found else socket.gethostname())


def _run(*words: str) -> str:
    """Run a command and return what it prints.

    Raises:
        SlurmError: If it is not there, fails, or does not answer in time.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
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

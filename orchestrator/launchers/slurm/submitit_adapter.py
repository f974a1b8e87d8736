"""Adapter of submitit, which is imported nowhere else: callables in, job ids out."""

import importlib.util
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.launchers.ray_watchdog import OWNER
from orchestrator.launchers.slurm.commands import SlurmError
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.records.code_snapshot import with_code

INHERITED = (
    *("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_", "CUDA_VISIBLE_DEVICES"),
    # The token, and the mark by which a pilot's end finds all that belongs to it.
    *("RAY_", OWNER),
)
"""Prefixes of variables that a job submitted inside another one must not inherit."""
ALWAYS_SET = (
    *("array", "nodes", "ntasks-per-node", "time", "signal", "job-name", "requeue", "no-requeue"),
    *("output", "error", "open-mode", "wait"),
    *("gpus", "gpus-per-node", "gpus-per-task", "cpus-per-gpu"),
)
"""Options of sbatch for which the shell's variables (SBATCH_TIMELIMIT …) do not count."""
VARIABLES = {
    "array": ("ARRAY_INX",),
    "time": ("TIMELIMIT",),
    **dict.fromkeys(
        ("mem", "mem-per-cpu", "mem-per-gpu"), ("MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU")
    ),
}
"""Variables of options whose name is another one, or that exclude each other; without SBATCH_."""


def require() -> None:
    """Check that submitit is installed.

    Raises:
        SlurmError: If not.
    """
    if importlib.util.find_spec("submitit") is None:
        raise SlurmError(
            "--backend slurm: needs submitit, which is not installed; pip install 'memscale[slurm]'"
        )


def submit(
    calls: Sequence[Callable[[], object]],
    *,
    name: str,
    folder: Path,
    request: SlurmOptions,
    nodes: int = 1,
    cpus: int | None = None,
    gpus: int = 0,
    requeue: bool = True,
    code: Path | None = None,
) -> list[str]:
    """Submit callables, several as one array; return one job id for each.

    Each is called once on each of its nodes.

    Args:
        calls: Picklable, of modules of this package.
        name: Of the job, as `squeue` shows it.
        folder: On storage that all nodes see; takes scripts, pickles and what the jobs print.
        request: Partition, time and further options.
        nodes: Of each job.
        cpus: Cores per node; None takes nodes whole.
        gpus: GPUs per node.
        requeue: Whether Slurm may start a job again after preemption or the loss of a node.
        code: Folder that jobs import from; None: where this program is.

    Raises:
        SlurmError: If sbatch refuses; says what it said. Or if `folder` has a `%` in its path.
    """
    require()
    refuse_placeholders(folder)
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder.mkdir(parents=True, exist_ok=True)
    parameters = _parameters(
        request, name=name, nodes=nodes, cpus=cpus, gpus=gpus, requeue=requeue, code=code
    )
    explicit = _explicit(request, cpus=cpus) | parameters.keys() & {"gres"}
    with _outside_any_job(explicit=explicit):
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**parameters)
        try:
            with executor.batch():
                jobs = [executor.submit(call) for call in calls]
        except (FailedJobError, FailedSubmissionError) as error:
            raise SlurmError(f"sbatch refused: {_said(error)}") from error
        return [str(job.job_id) for job in jobs]


def _parameters(
    request: SlurmOptions,
    *,
    name: str,
    nodes: int,
    cpus: int | None,
    gpus: int,
    requeue: bool,
    code: Path | None,
) -> dict[str, Any]:
    """Return the parameters of submitit's executor; the arguments are those of `submit`."""
    path = with_code(code, {})["PYTHONPATH"]
    parameters: dict[str, Any] = {
        "job_name": name,
        "time": request.minutes,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "signal_delay_s": request.notice_s,
        "stderr_to_stdout": True,
        "array_parallelism": request.max_nodes,
        # Not left to what sbatch passes on: sites set it to nothing (--export=NONE), and srun would
        # take that over. Safe path: what lies in the folder that sbatch was called from must shadow
        # nothing.
        "setup": [
            f"export PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1",
            "export SLURM_EXPORT_ENV=ALL",
        ],
        # Since 22.05 steps do not take over how many cores their job asked for.
        "srun_args": ["--cpu-bind=none"] if cpus is None else [f"--cpus-per-task={cpus}"],
        "additional_parameters": {
            ("requeue" if requeue else "no-requeue"): True,
            **{key: value or True for key, value in request.options.items() if key != "gres"},
        },
    }
    if request.partition is not None:
        parameters["partition"] = request.partition
    if cpus is None:
        parameters["exclusive"] = True
    else:
        parameters["cpus_per_task"] = cpus
    if gres := _gres(gpus, request.options.get("gres", "")):
        parameters["gres"] = gres
    return parameters


def _gres(gpus: int, asked: str) -> str:
    """Return the value of --gres: so many GPUs, and what else was asked for.

    Args:
        gpus: GPUs per node.
        asked: As in `gpu:a100,lscratch:20`: a type of GPUs, and other resources.
    """
    parts = [part.strip() for part in asked.split(",") if part.strip()]
    kinds = [part for part in parts if part.startswith("gpu:")]
    rest = [part for part in parts if part not in kinds]
    return ",".join([f"{kind}:{gpus}" for kind in (kinds or ["gpu"])[:1] if gpus] + rest)


def refuse_placeholders(folder: Path) -> None:
    """Refuse a path that Slurm would read as a pattern of file names.

    Raises:
        SlurmError: If there is a `%` in it.
    """
    if "%" in str(folder.absolute()):
        raise SlurmError(
            f"{folder.absolute()}: Slurm reads % in paths as a placeholder (%j is a job's id); "
            "choose --runs and a sweep name without %"
        )


def _explicit(request: SlurmOptions, *, cpus: int | None) -> frozenset[str]:
    """Return the options of sbatch that a job's script sets."""
    given = ["exclusive"] if cpus is None else ["cpus-per-task"]
    if request.partition is not None:
        given.append("partition")
    return frozenset((*ALWAYS_SET, *given, *request.options))


def _said(error: BaseException) -> str:
    """Return what sbatch wrote, without the traceback that submitit puts around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.removeprefix("sbatch: ") for line in lines if line.startswith("sbatch: ")]
    return "; ".join(said or lines[-1:]) or type(error).__name__


@contextmanager
def _outside_any_job(*, explicit: Collection[str]) -> Iterator[None]:
    """Hide that this process runs inside a job, and what the shell has in place of our options.

    Args:
        explicit: Options that the script sets; for sbatch variables of the shell come first.
    """
    shadowing = {
        f"SBATCH_{variable}"
        for option in explicit
        for variable in VARIABLES.get(option, (option.upper().replace("-", "_"),))
    }
    inside = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(INHERITED) and name != "SLURM_CONF") or name in shadowing
    }
    for name in inside:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(inside)

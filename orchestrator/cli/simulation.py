"""The part of `memscale plan` that runs a sweep in simulated time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.app import console_here, echo_json, make_plan, names_option

if TYPE_CHECKING:
    from orchestrator.simulation.faults import Faults
    from orchestrator.simulation.simulate import Simulation


def read_faults(
    mtbf_node_hours: float | None,
    preemption: str | None,
    checkpoint_s: float | None,
    seed: int | None,
) -> "tuple[Faults, float | None] | None":
    """Return the faults to simulate and the seconds of a checkpoint; None without faults."""
    import math

    from orchestrator.simulation.faults import Faults, preemption_every_s

    if mtbf_node_hours is None and preemption is None:
        for option, value in {"--checkpoint-s": checkpoint_s, "--seed": seed}.items():
            if value is not None:
                raise typer.BadParameter(
                    "needs faults: add --mtbf-node-hours 20000 or --preemption 0.02/h",
                    param_hint=option,
                )
        return None
    for option, hours, least in (
        ("--mtbf-node-hours", mtbf_node_hours, 1e-3),
        ("--checkpoint-s", checkpoint_s, 0.0),
        ("--seed", seed, 0),
    ):
        if hours is not None and not least <= hours < math.inf:
            raise typer.BadParameter(f"must be at least {least:g}, got {hours}", param_hint=option)
    with names_option("--preemption"):
        every_s = math.inf if preemption is None else preemption_every_s(preemption)
    mtbf_s = math.inf if mtbf_node_hours is None else 3600 * mtbf_node_hours
    faults = Faults(node_mtbf_s=mtbf_s, preemption_every_s=every_s, seed=seed or 0)
    return faults, checkpoint_s


def run(
    sweep_files: list[Path],
    runs: Path,
    cluster_text: str,
    picture: Path | None,
    price: Any,
    faulty: "tuple[Faults, float | None] | None",
    *,
    json: bool,
) -> None:
    """Run the plan in simulated time; print, and draw, what became of it."""
    from orchestrator.simulation import cluster_spec, fault_summary, gantt, planned_trials, summary
    from orchestrator.simulation.faults import simulate_faults
    from orchestrator.simulation.simulate import simulate

    with names_option("--simulate"):
        cluster = cluster_spec.parse(cluster_text)
    if picture is not None:
        # Before the work, which may take minutes.
        with names_option("--picture"):
            gantt.check_place(picture)
    priced = make_plan(sweep_files, runs, gpus_there=cluster.gpus > 0, nodes=cluster.nodes)
    waiting = planned_trials.waiting_trials(priced, cluster)
    with _without_garbage_collection():
        if faulty is None:
            result, cost = simulate(cluster.nodes, waiting), None
        else:
            faults, write_s = faulty
            jobs = planned_trials.fault_jobs(priced, waiting, write_s=write_s)
            result = simulate_faults(cluster.nodes, jobs, faults)
            cost = fault_summary.fault_summary(result, jobs, faults)
    label = {trial.spec.trial_id: trial.spec.architecture for trial in priced.trials}
    name = priced.sweep.name
    if json:
        echo_json(summary.simulation_json(result, label, cost))
    else:
        what = "GPU" if result.by_gpu else "core"
        rows = fault_summary.summary_rows(cost, faulty[0], what=what) if cost and faulty else ()
        rate = planned_trials.rate_text(priced, cluster)
        console_here().print(
            summary.simulation_text(result, cluster, name=name, label=label, rate=rate, faults=rows)
        )
        if price is not None:
            seconds = result.gpu_seconds if price.unit == "gpu" else result.core_seconds
            console_here().print(f"Costs about {price.text(seconds / 3600)}.")
    if picture is not None and result.runs:
        _draw(result, picture, f"{name} on {cluster}\n{summary.headline(result)}", label)
        typer.echo(f"Drawn into {picture}.", err=json)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Skip the search for cycles: of a simulation nothing is in one, and it takes a fifth of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _draw(result: "Simulation", picture: Path, title: str, label: dict[str, str]) -> None:
    """Draw the Gantt chart, each architecture in the colour of its curves."""
    from orchestrator.records.errors import StoreError
    from orchestrator.simulation import gantt

    try:
        from analysis.plotting.style import series_styles
    except ModuleNotFoundError as error:
        raise StoreError(
            f"pictures need {error.name}, which is not installed; pip install 'memscale[analysis]'"
        ) from error
    styles = series_styles(label[one.trial.trial_id] for one in result.runs)
    colours = {architecture: style.colour for architecture, style in styles.items()}
    gantt.draw(result, picture, title=title, label=label, colours=colours)

"""Command `memscale plan`: price of a sweep, and its simulation on a cluster."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import simulation
from orchestrator.cli.app import (
    PriceText,
    Runs,
    SweepFiles,
    console_here,
    echo_json,
    make_plan,
    read_price,
    spent_text,
    verb,
)


def _print_recipes(wanted: bool) -> None:
    """Print the recipes and end: the option needs no sweep file beside it."""
    if not wanted:
        return
    from orchestrator.cli.render import plan as plans
    from orchestrator.sweep import registry

    console_here().print(plans.recipes_text(registry.recipes_module()))
    raise typer.Exit


Slots = Annotated[
    int | None,
    typer.Option(
        help="Trials at a time, for the predicted time. Default: as cores and GPUs here allow.",
        min=1,
    ),
]
Show = Annotated[
    bool, typer.Option("--show", help="Print the sweep file itself, to start one's own from.")
]
Json = Annotated[bool, typer.Option("--json", help="Print every number of every trial as JSON.")]
Convention = Annotated[
    Literal["paper"] | None,
    typer.Option(
        help="Also FLOPs of a block as MemoryFormer's tables count them: a multiply-add is one, "
        "attention over the whole square, no head."
    ),
]
Recipes = Annotated[
    bool,
    typer.Option(
        "--recipes",
        help="Print what `train: {recipe: …}` may name, with sources, and nothing else.",
        callback=_print_recipes,
        is_eager=True,
    ),
]
Simulate = Annotated[
    str | None,
    typer.Option(
        help="Run the sweep in simulated time on a cluster: gpus=1024, or "
        "nodes=8,gpus_per_node=8,gpu_memory=80GB. Also cpus_per_node=96 and gpu_flops=4e14 (FLOP/s "
        "that training reaches on a GPU); unlike nodes by +.",
        metavar="CLUSTER",
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        help="With --simulate: draw who runs where and when into this PNG, SVG or PDF file."
    ),
]
Mtbf = Annotated[
    float | None,
    typer.Option(help="With --simulate: mean hours between failures of a node, for example 20000."),
]
Preemption = Annotated[
    str | None,
    typer.Option(help="With --simulate: how often a node is preempted, as 0.02/h.", metavar="RATE"),
]
CheckpointS = Annotated[
    float | None,
    typer.Option(
        help="With faults: seconds that writing a checkpoint takes. Default: by its size, 1 GB/s."
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="With faults: another one draws other faults. Default: 0.")
]


@verb(
    epilog="Examples: memscale plan quickstart  ·  memscale plan dense.yaml memory.yaml  ·  "
    "memscale plan my_sweeps/  ·  memscale plan --show quickstart > my_sweep.yaml  ·  "
    "memscale plan quickstart --simulate gpus=1024  ·  memscale plan quickstart "
    "--simulate nodes=8,gpus_per_node=8,gpu_memory=80GB --picture gantt.png",
    help="Price a sweep before anything starts: parameters, FLOPs, bytes, memory, minutes; what is "
    "new and why.",
)
def plan(
    sweep_files: SweepFiles,
    runs: Runs = Path("runs"),
    slots: Slots = None,
    show: Show = False,
    json: Json = False,
    recipes: Recipes = False,
    convention: Convention = None,
    simulate: Simulate = None,
    picture: Picture = None,
    mtbf_node_hours: Mtbf = None,
    preemption: Preemption = None,
    checkpoint_s: CheckpointS = None,
    seed: Seed = None,
    price_text: PriceText = None,
) -> None:
    """Price a sweep before anything starts."""
    price = read_price(price_text)
    if show:
        _show(sweep_files)
        return
    if simulate is not None:
        simulation.run(
            sweep_files,
            runs,
            simulate,
            picture,
            price,
            simulation.read_faults(mtbf_node_hours, preemption, checkpoint_s, seed),
            json=json,
        )
        return
    for option, value in {
        "--picture": picture,
        "--mtbf-node-hours": mtbf_node_hours,
        "--preemption": preemption,
        "--checkpoint-s": checkpoint_s,
        "--seed": seed,
    }.items():
        if value is not None:
            raise typer.BadParameter(
                "needs --simulate, as in --simulate gpus=64", param_hint=option
            )
    priced = make_plan(sweep_files, runs)
    papers = convention == "paper"
    if json:
        rows = [
            plan_row(
                trial, priced.sweep, facts=priced.facts.get(trial.spec.trial_id), papers=papers
            )
            for trial in priced.trials
        ]
        echo_json(rows)
        return
    print_plan(priced, slots=slots, papers=papers)
    if price is not None:
        console_here().print(_price_line(priced, price))


def print_plan(priced: Any, *, slots: int | None = None, papers: bool = False) -> None:
    """Print what `plan` and `submit --dry-run` say.

    Raises:
        ConfigError: After that, if no machine has the memory for a trial.
    """
    from orchestrator.cli.render import plan as plans
    from orchestrator.planning import memory_fit
    from orchestrator.records.errors import ConfigError

    console_here().print(plans.plan_tables(priced, slots=slots or _slots(priced), papers=papers))
    if problems := memory_fit.fits_no_machine(priced):
        raise ConfigError(problems)


def _price_line(priced: Any, price: Any) -> str:
    """Return what the sweep will cost, and has cost."""
    from orchestrator.node.hardware import visible_gpus
    from orchestrator.planning.price import planned_hours
    from orchestrator.records.sweep_dir import SweepDir

    on_gpus = bool(visible_gpus())
    hours = planned_hours(priced.trials, price, gpus_there=on_gpus)
    if price.unit == "gpu" and not on_gpus and not hours:
        return "No GPU here to price: add --simulate gpus=8 for a cluster, or write /core-hour."
    spent = spent_text(SweepDir(priced.snapshot.path), price)
    return f"To train costs about {price.text(hours)}; {spent}."


def _show(sweep_files: list[Path]) -> None:
    """Print the sweep files themselves, as one."""
    from orchestrator.records.errors import ConfigError
    from orchestrator.sweep.parsing import discovery

    sources, problems = discovery.sources(sweep_files)
    if problems:
        raise ConfigError(problems)
    typer.echo(discovery.joined(sources), nl=False)


def plan_row(trial: Any, sweep: Any, *, facts: Any = None, papers: bool = False) -> dict[str, Any]:
    """Return what `plan --json` prints of a trial.

    `facts` is what its data state, None where they are no facts. With `papers`, `paper_block_flops`
    is null where that convention counts nothing.
    """
    from orchestrator.planning import exposures

    matched = sweep.matches.get(trial.spec.trial_id)
    return {
        "trial_id": trial.spec.trial_id,
        "origin": trial.spec.origin,
        "architecture": trial.spec.architecture,
        "preset": trial.spec.preset,
        "recipe": trial.spec.recipe,
        "seed": trial.spec.seed,
        "status": trial.status,
        "why": trial.why,
        "predicted_s": trial.runtime.seconds,
        "predicted_between_s": [trial.runtime.seconds * f for f in trial.runtime.factors],
        "predicted_from": trial.runtime.source,
        "not_causal": trial.spec.not_causal,
        "match": None if matched is None else dataclasses.asdict(matched),
        "facts": None if facts is None else exposures.row(facts, trial.spec),
        **({"paper_block_flops": None} if papers else {}),
        **trial.spec.accounting,
    }


def _slots(priced: Any) -> int:
    """Return how many of the largest trials to train have room here at a time; 1 at least."""
    from orchestrator.node.hardware import usable_cores, visible_gpus

    cores, gpus = usable_cores(), len(visible_gpus())

    def at_a_time(resources: Any) -> int:
        by_cores: int = cores // (resources.cpus * resources.ranks)
        asked = resources.ranks if resources.gpus == "auto" else resources.gpus
        if not gpus or not asked:
            return by_cores
        # A fraction is of one GPU, and never of two.
        by_gpus = gpus // asked if asked >= 1 else gpus * int(1 / asked)
        return min(by_cores, int(by_gpus))

    to_train = [t.spec.resources for t in priced.trials if t.to_train]
    return max(1, min(map(at_a_time, to_train), default=1))

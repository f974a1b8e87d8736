"""Command `memscale init`: a first sweep file, from flags or five questions."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.app import verb

Name = Annotated[str | None, typer.Option(help="Name of the sweep, and of the file.")]
Architectures = Annotated[
    str | None,
    typer.Option(
        help="Architectures to compare, with commas; the first is what others are compared with."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="biographies (invented people), or a file: text (.txt, .jsonl, .parquet) or triples "
        "(.tsv)."
    ),
]
Scale = Annotated[str | None, typer.Option(help="laptop: minutes on a CPU. gpu: hours on a GPU.")]
Seeds = Annotated[int | None, typer.Option(help="Times that each configuration is trained.")]
Out = Annotated[Path | None, typer.Option(help="File to write. Default: NAME.yaml", dir_okay=False)]


@verb(
    epilog="Examples: memscale init  ·  memscale init --name recall --architectures "
    "dense,memory_plus  ·  memscale init --name mine --data corpus.txt --scale gpu --seeds 3",
    help="Write a commented sweep file. What no flag says is asked; without a terminal it takes "
    "its default.",
)
def init(
    name: Name = None,
    architectures: Architectures = None,
    data: Data = None,
    scale: Scale = None,
    seeds: Seeds = None,
    out: Out = None,
) -> None:
    """Write a commented sweep file."""
    from orchestrator.cli.render.command_name import command
    from orchestrator.records.errors import UsageError
    from orchestrator.records.sweep_dir import sweep_dir
    from orchestrator.sweep import registry, template

    known = registry.architectures()
    name = _answer(name, "Name of the sweep", "my_sweep")
    sweep_dir(Path(), name)  # refuses what is no name
    path = out or Path(f"{name}.yaml")
    listed = _answer(
        architectures, f"Architectures, with commas ({', '.join(known)})", "dense,memory_plus"
    )
    chosen = [one.strip() for one in listed.split(",") if one.strip()]
    _check("--architectures", chosen, known)
    what = _answer(data, "Data: biographies, or a file of text or triples", template.INVENTED)
    size = _answer(scale, f"Where it will train ({' or '.join(template.SCALES)})", "laptop")
    _check("--scale", [size], template.SCALES)
    n_seeds = _answer(seeds, "Seeds", 3)
    if n_seeds < 1:
        raise typer.BadParameter(f"must be at least 1, got {n_seeds}", param_hint="--seeds")
    if path.exists():
        raise UsageError(f"{path}: is there already; name another file with --out, or remove it")
    answers = template.Answers(
        name=name, architectures=chosen, data=what, scale=size, n_seeds=n_seeds
    )
    n_trials, remarks = _write(path, template.sweep_text(answers, file=str(path)))
    typer.echo(f"Written: {path} ({n_trials} trials)")
    for remark in remarks:
        typer.echo(f"Remark:  {remark}")
    typer.echo(f"Look:    {command()} plan {path}")
    typer.echo(f"Train:   {command()} submit {path}")


def _answer(given: Any, question: str, default: Any) -> Any:
    """Return what a flag says, else what a person answers, else the default."""
    if given is not None:
        return given
    return typer.prompt(question, default=default) if sys.stdin.isatty() else default


def _check(flag: str, chosen: list[str], known: Any) -> None:
    """Refuse names that are not known, none, and one named twice."""
    import difflib

    if not chosen or len(set(chosen)) < len(chosen):
        raise typer.BadParameter("name each once, and at least one", param_hint=flag)
    for one in chosen:
        if one not in known:
            near = difflib.get_close_matches(one, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise typer.BadParameter(
                f"{one!r}: {guess}there are {', '.join(known)}", param_hint=flag
            )


def _write(path: Path, text: str) -> tuple[int, tuple[str, ...]]:
    """Write a sweep file that can be planned, or none.

    Return how many trials it asks for, and what `plan` will remark about its data.
    """
    from orchestrator.planning import input_data, pricing
    from orchestrator.records.sweep_dir import sweep_dir
    from orchestrator.sweep.load import load_sweep

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    try:
        sweep = load_sweep(path)
        snapshot = sweep_dir(Path("runs"), sweep.name).snapshot()
        priced = pricing.make_plan(sweep, snapshot, ())
        checked = input_data.check_data(priced)
        return len(sweep.trials), checked.notes[len(priced.notes) :]
    except BaseException:  # Ctrl-C, too: a file that is left would be in the way of the next try
        path.unlink()
        raise

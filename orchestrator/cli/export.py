"""Command `memscale export`: models to transformers, sweeps to other trackers."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import TRIAL, Runs, find_sweep, find_trial, sweep_names, verb
from orchestrator.records.units import plural


class Format(StrEnum):
    """What is written."""

    HUGGINGFACE = "huggingface"
    WANDB = "wandb"
    TRACKIO = "trackio"


EXPORTED = ("dense", "pythia", "moe")
"""Architectures whose models can be written, as in `workloads.checkpoint.huggingface`. That is not
imported here, where a `workloads.py` of the current folder may come first."""
READ_BY = {
    Format.WANDB: "wandb sync {}/wandb/offline-run-*",
    Format.TRACKIO: "TRACKIO_DIR={} trackio show",
}


@verb(
    epilog="Examples: memscale export dense-1f0c --to models/dense  ·  "
    "memscale export quickstart --format wandb --to copies",
    help=f"Write a trained model ({', '.join(EXPORTED)}) as a folder that transformers loads "
    "(AutoModelForCausalLM, AutoTokenizer), or the measurements of a sweep as files of another "
    "tracker.",
)
def export(
    name: Annotated[
        str,
        typer.Argument(
            help=f"A {TRIAL}. For wandb and trackio: name of a submitted sweep.",
            metavar="TRIAL|SWEEP",
        ),
    ],
    to: Annotated[
        Path, typer.Option(help="Folder to write; made if it is not there.", file_okay=False)
    ],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="huggingface: one trial's model. wandb: offline runs of Weights & Biases. "
            "trackio: its SQLite file. Neither opens a connection.",
        ),
    ] = Format.HUGGINGFACE,
    runs: Runs = Path("runs"),
) -> None:
    """Write a trained model or a sweep's measurements in the format of others."""
    if form is not Format.HUGGINGFACE:
        _copy_sweep(runs, name, to, form)
        return
    from orchestrator.evaluation import trained_trial
    from orchestrator.records.errors import NotFoundError

    try:
        found = find_trial(runs, name)
    except NotFoundError:
        if name not in sweep_names(runs):
            raise
        others = " or ".join(f"--format {one.value}" for one in READ_BY)
        raise NotFoundError(
            f"{name!r} is a sweep; name one of its trials, which `memscale status {name}` lists, "
            f"or give {others}"
        ) from None
    trained = trained_trial.export(found, to)
    typer.echo(f"Wrote {found.trial_id} to {to}. Load it with")
    typer.echo(f"  transformers.AutoModelForCausalLM.from_pretrained({str(to)!r})")
    if trained.tokenizer is None:
        typer.echo("It has no tokenizer: the data of this trial have words of their own.")


def _copy_sweep(runs: Path, name: str, to: Path, form: Format) -> None:
    """Write the measurements of a sweep as files of another tracker."""
    from orchestrator.tracking.other_trackers import run_copy

    written = run_copy.copy_sweep(find_sweep(runs, name), to, form=form.value)
    typer.echo(f"Wrote {plural(written, 'trial')} of {name} to {to}. Look at them with")
    typer.echo(f"  {READ_BY[form].format(shlex.quote(str(to)))}")

"""Command `memscale export`: a trained model in Hugging Face's format."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import Runs, find_trial, verb


@verb(
    epilog="Example: memscale export dense-1f0c --to models/dense",
    help="Write a trained model as a folder that transformers loads "
    "(AutoModelForCausalLM, AutoTokenizer).",
)
def export(
    trial: Annotated[str, typer.Argument(help="Trial id, or its beginning.", metavar="TRIAL")],
    to: Annotated[Path, typer.Option(help="Folder to write; made if it is not there.")],
    runs: Runs = Path("runs"),
) -> None:
    """Write a trained model in Hugging Face's format."""
    from orchestrator.evaluation import trained_trial

    found = find_trial(runs, trial)
    trained = trained_trial.export(found, to)
    typer.echo(f"Wrote {found.trial_id} to {to}. Load it with")
    typer.echo(f"  transformers.AutoModelForCausalLM.from_pretrained({str(to)!r})")
    if trained.tokenizer is None:
        typer.echo("It has no tokenizer: the data of this trial have words of their own.")

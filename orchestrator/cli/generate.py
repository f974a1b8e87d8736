"""Command `memscale generate`: continuations of prompts."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import TRIAL, Json, Runs, echo_json, find_trial, verb

Model = Annotated[
    str,
    typer.Argument(
        help=f"A {TRIAL}, or a folder in Hugging Face's format.",
        metavar="TRIAL|FOLDER",
    ),
]
Prompt = Annotated[
    list[str] | None, typer.Option(help="Text to continue; may be given several times.")
]
Prompts = Annotated[
    Path | None,
    typer.Option(help="File of prompts, one a line, or JSON lines with a field `prompt`."),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens to add to each. Default: 64, or as many as the model reads at once with "
        "the prompt.",
        min=1,
    ),
]
Temperature = Annotated[
    float, typer.Option(help="What logits are divided by before a draw; 0 is greedy.", min=0.0)
]
TopK = Annotated[int | None, typer.Option(help="Draw from as many likeliest tokens.", min=1)]
TopP = Annotated[
    float | None, typer.Option(help="Draw from the fewest likeliest tokens of this probability.")
]
Seed = Annotated[
    int, typer.Option(help="Of the first prompt's draws; each further one has the next.")
]


@verb(
    epilog="Examples: memscale generate dense-1f0c --prompt 'The river'  ·  "
    "memscale generate dense-1f0c --prompts questions.txt --max-tokens 20 --json  ·  "
    "memscale generate models/dense --prompt 'The river' --temperature 0.8 --top-p 0.95 --seed 3",
    help="Continue prompts with a trained model: greedily, or drawn with a temperature.",
)
def generate(
    what: Model,
    prompt: Prompt = None,
    prompts: Prompts = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json: Json = False,
    runs: Runs = Path("runs"),
) -> None:
    """Continue prompts with a trained model."""
    from orchestrator.evaluation import generate_trial
    from orchestrator.records.errors import UsageError

    texts = [*(prompt or []), *(generate_trial.read_prompts(prompts) if prompts else [])]
    if not texts:
        raise UsageError("there is no prompt; give --prompt TEXT or --prompts FILE")
    model = Path(what) if Path(what).is_dir() else find_trial(runs, what)
    found = generate_trial.generate(
        model,
        texts,
        n_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        device_name=device,
    )
    if json:
        echo_json(list(found))
        return
    for number, one in enumerate(found):
        typer.echo(("\n" if number else "") + one["prompt"] + one["text"])

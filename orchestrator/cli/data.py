"""Command `memscale data`: corpora to token shards."""

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.app import Verb, Verbs, app, console_here, needs_extra

data_app = typer.Typer(cls=Verbs, no_args_is_help=True, help="Prepare corpora for training.")
app.add_typer(data_app, name="data")


Sources = Annotated[
    list[str],
    typer.Argument(
        help="JSON lines, text (plain, .gz, .zst), Parquet, folders and patterns of these, "
        "hf:OWNER/NAME/CONFIG@REVISION:SPLIT of the Hugging Face hub (the last three may be left "
        "out); or tokens: .bin, .npy, Megatron's .bin with .idx.",
        metavar="SOURCE...",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="bpe:SIZE trains one on the text. Or a file: tokenizer.json, SentencePiece's "
        ".model, tiktoken's (of a vocabulary of its own with FILE.json beside it)."
    ),
]
TextField = Annotated[
    str, typer.Option(help="Field of JSON lines, column of Parquet, that holds the text.")
]
Separator = Annotated[
    str | None,
    typer.Option(
        help="Token of a loaded tokenizer that begins each document. Default: a usual one."
    ),
]
Valid = Annotated[list[str] | None, typer.Option(help="Held-out text; may be given several times.")]
ValidShare = Annotated[
    float, typer.Option(help="Share of the documents held out, by hash, without --valid.")
]
Against = Annotated[
    list[str] | None,
    typer.Option(
        help="Evaluation file: report which of its items occur in the text. May be given "
        "several times."
    ),
]
VocabSize = Annotated[int | None, typer.Option(help="Vocabulary of sources that are tokens.")]
Workers = Annotated[int | None, typer.Option(help="Processes. Default: one per core.", min=1)]


@data_app.command(
    cls=Verb,
    epilog="Examples: memscale data prepare corpus/ --tokenizer bpe:16384 --out tokens  ·  "
    "memscale data prepare 'shards/*.jsonl.zst' --tokenizer tokenizer.json --out tokens "
    "--against nq_open.jsonl  ·  "
    "memscale data prepare hf:allenai/c4/en --tokenizer llama3.model --out c4  ·  "
    "memscale data prepare train.bin --vocab-size 50257 --out owt",
    help="Tokenise text on all cores into memory-mapped shards. Run again after an interruption, "
    "it goes on. A sweep reads the folder with `data: {source: tokens, path: DIR}`.",
)
@needs_extra("torch")
def prepare(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder to fill.")],
    tokenizer: Tokenizer = None,
    text_field: TextField = "text",
    separator: Separator = None,
    valid: Valid = None,
    valid_share: ValidShare = 0.01,
    against: Against = None,
    vocab_size: VocabSize = None,
    workers: Workers = None,
) -> None:
    """Tokenise text into memory-mapped shards."""
    # Imported here, so that the command answers at once. Above is what typer reads as its options.
    from orchestrator.records.errors import UsageError
    from orchestrator.sweep import registry

    preparation = registry.data_preparation()
    request = preparation.PrepareRequest(
        sources=tuple(sources),
        out=out,
        tokenizer=tokenizer,
        separator=separator,
        vocab_size=vocab_size,
        text_field=text_field,
        valid=tuple(valid or ()),
        valid_share=valid_share,
        against=tuple(against or ()),
        workers=workers,
    )
    try:
        manifest = preparation.prepare(request, lambda line: typer.echo(line, err=True))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("Interrupted; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    _print(out, manifest)


def _print(out: Path, manifest: Any) -> None:
    console = console_here()
    for name, split in manifest.splits.items():
        documents = f" in {split['documents']:,} documents" if split["documents"] else ""
        console.print(f"{name}: {split['tokens']:,} tokens{documents}")
    for file in manifest.contamination:
        judged = file["items"] - file["too_short"]
        console.print(
            f"{file['name']}: {file['contaminated']:,} of {judged:,} items occur in the text "
            f"({file['rule']}); {file['too_short']:,} items are too short to tell"
        )
    console.print(f"Use it with  data: {{source: tokens, path: {out}}}", markup=False)

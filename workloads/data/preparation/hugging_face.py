"""Documents of a data set of the Hugging Face hub, streamed. Needs `datasets` and a network."""

from collections.abc import Iterator

from workloads.data.readers.problems import DataError, Problems

PREFIX = "hf:"


def dataset_documents(source: str, problems: Problems, *, text_field: str) -> Iterator[str]:
    """Yield the texts of `hf:NAME[@REVISION][:SPLIT]`; the split is `train` by default.

    Raises:
        DataError: If the package is missing, or the data set cannot be had.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            [f"{source}: needs datasets to be read; pip install 'memscale[data]'"]
        ) from error
    name, _, split = source.removeprefix(PREFIX).partition(":")
    name, _, revision = name.partition("@")
    try:
        rows = load_dataset(name, split=split or "train", revision=revision or None, streaming=True)
    except Exception as error:  # of the hub, of the network or of the data set's files
        raise DataError(
            [f"{source}: {error}; check the name, the split and the network"]
        ) from error
    for row in rows:
        text = row.get(text_field)
        if not isinstance(text, str):
            has = f"it has {', '.join(map(repr, row))}"
            raise DataError(
                [f"{source}: has no text in field {text_field!r}; {has}; set --text-field"]
            )
        if text.strip():
            yield text

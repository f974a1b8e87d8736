import pytest

from workloads.data.hub_source import HubSource
from workloads.data.readers.problems import DataError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:o/n", (None, None, "train", None)),
        ("hf://o/n", (None, None, "train", None)),
        ("hf:o/n/en@v1:test", ("en", "v1", "test", None)),
        ("hf:o/n@refs/convert/parquet", (None, "refs/convert/parquet", "train", None)),
        ("hf://datasets/o/n", (None, None, "train", None)),
        ("hf://datasets/o/n@v1/a/*.parquet", (None, "v1", "train", "a/*.parquet")),
        (
            "hf://datasets/o/n@refs/convert/parquet/en/train",
            (None, "refs/convert/parquet", "train", "en/train"),
        ),
    ],
)
def test_sources_as_people_write_them(text, expected):
    source = HubSource.parse(text)
    assert (source.config, source.revision, source.split, source.files) == expected
    assert source.name == "o/n"


def test_a_name_without_its_owner_is_refused():
    with pytest.raises(DataError, match="^hf:c4: names no data set of the hub; write hf:OWNER"):
        HubSource.parse("hf:c4")

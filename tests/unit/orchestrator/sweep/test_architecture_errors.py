"""A mistake in an architecture's code is told in one line that names the place."""

import sys
from pathlib import Path

import pytest

from orchestrator.records.errors import ConfigError, ExperimentError
from orchestrator.sweep import architecture_errors


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """The file of an architecture whose line 2 fails."""
    file = tmp_path / "architectures" / "dense.py"
    file.parent.mkdir()
    return file


def run(file: Path, line: str) -> None:
    exec(compile(f"\n{line}", file, "exec"), {"sys": sys})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sys.n_layer", "AttributeError: module 'sys' has no attribute 'n_layer'"),
        ("int('x')", "ValueError: invalid literal for int() with base 10: 'x'"),
        # Raised below: the line that calls is the architecture's.
        ("__import__('json').loads('')", "JSONDecodeError: Expecting value: line 1 column 1"),
    ],
)
def test_its_file_and_line_are_named(dense: Path, line: str, said: str) -> None:
    with pytest.raises(ExperimentError) as caught, architecture_errors.as_sentences():
        run(dense, line)

    assert str(caught.value).startswith(f"architecture dense: {dense}:2: {said}")


def test_the_architecture_that_calls_another_is_named_first(dense: Path) -> None:
    def call(*architectures: str) -> None:
        scope: dict[str, object] = {"sys": sys}
        for name, line in zip(architectures, ["sys.n_layer", "call()", "call()"], strict=False):
            text = f"def call(call=globals().get('call')):\n    {line}"
            exec(compile(text, dense.with_name(f"{name}.py"), "exec"), scope)
        with architecture_errors.as_sentences():
            scope["call"]()  # type: ignore[operator]

    said = "AttributeError: module 'sys' has no attribute 'n_layer'"
    mine = dense.with_name("memory.py")
    with pytest.raises(ExperimentError) as caught:
        call("dense", "memory")
    assert str(caught.value) == f"architecture memory: {dense}:2, called in {mine}:2: {said}"

    with pytest.raises(ExperimentError) as caught:
        call("memory", "dense", "memory")
    assert str(caught.value) == f"architecture memory: {mine}:2: {said}"


def test_other_errors_pass(dense: Path) -> None:
    problem = ConfigError([])

    def raise_problem(*_: object) -> None:
        raise problem

    with pytest.raises(ConfigError), architecture_errors.as_sentences():
        raise_problem()
    elsewhere = dense.with_name("no_architecture.py")
    with pytest.raises(AttributeError), architecture_errors.as_sentences():
        run(elsewhere, "sys.n_layer")

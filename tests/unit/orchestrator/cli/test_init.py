"""`memscale init`: what it writes loads, from flags and from answers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.cli import init
from orchestrator.cli.app import make_plan
from orchestrator.planning import design_checks, exposures
from orchestrator.planning.pricing import account
from orchestrator.records.errors import ConfigError
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep
from orchestrator.sweep.template import SCALES, Answers, Scale, sweep_text


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def memscale_init(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["init", *words])
    return result.exit_code, " ".join(result.output.split())


def test_without_a_terminal_defaults_are_taken() -> None:
    code, said = memscale_init()

    assert code == 0
    assert "Written: my_sweep.yaml (36 trials)" in said
    sweep = load_sweep(Path("my_sweep.yaml"))
    assert {t.architecture for t in sweep.trials} == {"dense", "memory_plus"}
    assert sweep.question == "at equal training FLOPs, how does memory_plus compare with dense?"
    assert memscale_init()[0] != 0, "it is there already"
    # What was misspelt is said first: another file's name would not help.
    assert "did you mean dense?" in memscale_init("--architectures", "dens")[1]


def test_the_remark_on_memory_values_stands_above_the_first_entry_that_it_is_about() -> None:
    for names, entry in {
        ("dense", "memory", "memory_plus"): 1,
        ("memory", "dense"): 0,
        ("dense", "moe"): None,
    }.items():
        lines = sweep_text(Answers(name="s", architectures=names), file="s.yaml").splitlines()
        above = [i for i, line in enumerate(lines) if "Memory values learn faster" in line]
        assert len(above) == (entry is not None)
        if above:
            assert "train.value_lr_ratio" in lines[above[0] + 1]
            assert sum(line.startswith("  - ") for line in lines[: above[0]]) == entry


def test_five_questions_are_asked_and_flags_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = {"Name": "recall", "Architectures": " peer , dense", "Seeds": 2}

    def prompt(question: str, *, default: Any) -> Any:
        asked.append(question.split()[0])
        return answers.get(asked[-1].strip(",:"), default)

    monkeypatch.setattr(typer, "prompt", prompt)
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(init, "sys", terminal)

    code, said = memscale_init("--scale", "laptop")

    assert code == 0, said
    assert [word.strip(",:") for word in asked] == ["Name", "Architectures", "Data", "Seeds"]
    sweep = load_sweep(Path("recall.yaml"))
    assert [t.architecture for t in sweep.trials[::12]] == ["peer", "dense"]
    assert len(sweep.trials) == 24


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--architectures", "dnse"), "did you mean dense?"),
        (("--architectures", "dense,dense"), "name each once"),
        (("--architectures", ""), "at least one"),
        (("--scale", "cloud"), "there are laptop, gpu"),
        (("--seeds", "0"), "must be at least 1"),
        (("--name", "a/b"), "use letters, digits"),
        (("--data", "no-such.txt"), "no such file: no-such.txt"),
        (("--data", "questions.jsonl"), "questions.jsonl:1: has no field 'text'"),
        (("--data", "one.txt"), "one.txt: holds 1 document, which leaves none to train on"),
    ],
)
def test_mistakes_write_no_file(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    Path("questions.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n')
    Path("one.txt").write_text("One line.\n")

    code, said = memscale_init(*words)

    assert code != 0
    assert told in said.replace("│ ", "")
    assert list(tmp_path.rglob("*.yaml")) == []


def test_an_error_of_the_runs_folder_leaves_no_file(tmp_path: Path) -> None:
    """A file that is left would be in the way of the next try."""
    (tmp_path / "runs" / "n" / "trials").mkdir(parents=True)
    (tmp_path / "runs" / "n" / "controller.json").write_text("{")

    code, said = memscale_init("--name", "n")

    assert code != 0
    assert "controller.json" in said
    assert list(tmp_path.rglob("*.yaml")) == []


@pytest.mark.parametrize("name", ["it's mine.txt", "facts.tsv"])
def test_data_of_ones_own(name: str) -> None:
    rows = [f"Land {i}\tcapital\tTown {i % 7}\n" for i in range(9_000)]
    Path(name).write_text("subject\trelation\tobject\n" + "".join(rows))

    code, said = memscale_init("--data", name, "--architectures", "dense")

    assert code == 0, said
    source = "triples" if name.endswith("tsv") else "text"
    assert ("Remark: held-out text: about 700 tokens are few" in said) == (source == "text")
    assert load_sweep(Path("my_sweep.yaml")).trials[0].data["source"] == source


@pytest.mark.parametrize("architectures", [["dense"], ["dense", "engram"], ["memory_plus", "peer"]])
def test_what_it_writes_can_be_fitted(architectures: list[str]) -> None:
    Path("x.yaml").write_text(
        sweep_text(Answers(name="x", architectures=architectures), file="x.yaml")
    )
    specs = [replace(t, accounting=account(t)) for t in load_sweep(Path("x.yaml")).trials]
    assert design_checks.notes(specs) == ()


@pytest.mark.parametrize("scale", SCALES)
def test_its_invented_people_are_read_about_a_hundred_times(scale: Scale) -> None:
    answers = Answers(name="x", architectures=["dense"], scale=scale, n_seeds=1)
    Path("x.yaml").write_text(sweep_text(answers, file="x.yaml"))

    plan = make_plan([Path("x.yaml")], Path("runs"))

    assert [note for note in plan.notes if "facts:" in note or "text:" in note] == []
    (times,) = {exposures.exposures(plan.facts[t.spec.trial_id], t.spec) for t in plan.trials}
    assert 90 < times < 115


@pytest.mark.parametrize("scale", SCALES)
def test_every_architecture_can_be_compared(scale: Scale) -> None:
    """In one file each: a pair that does not load names itself."""
    for name in registry.architectures():
        if name == "dense":
            continue
        answers = Answers(name=name, architectures=["dense", name], scale=scale, n_seeds=1)
        Path(f"{name}.yaml").write_text(sweep_text(answers, file=f"{name}.yaml"))
        try:
            assert len(load_sweep(Path(f"{name}.yaml")).trials) == 12
        except ConfigError as error:
            pytest.fail(f"{name}, {scale}: {error}")

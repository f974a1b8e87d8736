"""Several files that make one sweep: whose trials, whose settings, whose mistakes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.records.errors import ConfigError
from orchestrator.sweep.load import Sweep, load_sweep
from orchestrator.sweep.parsing import discovery

LoadFiles = Callable[..., Sweep]
Load = Callable[..., Sweep]

TINY = "trials: [{set: {model.preset: tiny}}]\n"
SMALL = "trials: [{grid: {model.preset: [small]}}]\n"
OTHER_NAME = """
name: other
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: plain, preset: tiny}
"""


def told(load_files: LoadFiles, texts: dict[str, str], **options: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_files(texts, **options)
    return [f"{p.file.name}{str(p).removeprefix(str(p.file))}" for p in caught.value.problems]


def test_trials_follow_each_other_and_say_where_they_are_from(
    load_files: LoadFiles, tmp_path: Path
) -> None:
    sweep = load_files({"b.yaml": TINY, "a.yaml": SMALL + "seeds: [4, 5]\n"})

    assert sweep.name == "test"
    assert [trial.origin for trial in sweep.trials] == [
        "b.yaml: trials[0], seed 0",
        "a.yaml: trials[0].grid model.preset=small, seed 4",
        "a.yaml: trials[0].grid model.preset=small, seed 5",
    ]
    assert sweep.files == tuple(tmp_path / name for name in ("b.yaml", "a.yaml", "a.yaml"))


def test_a_trial_has_the_same_name_whoever_its_neighbours_are(
    load_files: LoadFiles, load: Load
) -> None:
    (alone,) = load(SMALL).trials

    assert alone.trial_id in {
        t.trial_id for t in load_files({"a.yaml": TINY, "b.yaml": SMALL}).trials
    }


def test_retries_and_logging_are_each_files_own(load_files: LoadFiles) -> None:
    sweep = load_files(
        {
            "a.yaml": TINY + "retries: {failure: 5}\n",
            "b.yaml": SMALL + "logging: {usage_every_steps: 7}\n",
        }
    )

    assert [t.retries.failure for t in sweep.trials] == [5, 1]
    assert [t.logging.usage_every_steps for t in sweep.trials] == [None, 7]


def test_warnings_name_their_file(load_files: LoadFiles) -> None:
    header = OTHER_NAME.replace("plain", "table, n_keys: 4").replace("other", "test")
    sweep = load_files(
        {"a.yaml": TINY, "b.yaml": "trials: [{set: {model.architecture: plain, model.d_ff: 99}}]"},
        headers={"b.yaml": header},
    )

    (warning,) = sweep.warnings
    assert "b.yaml:5:" in warning


def test_the_text_holds_every_file_and_loads_again(load_files: LoadFiles, tmp_path: Path) -> None:
    texts = {"a.yaml": TINY, "b.yaml": SMALL + "seeds: [0, 1]\n"}
    headers = {name: f"# Question: does {name[0]} help?\nname: test\n" for name in texts}
    rest = OTHER_NAME.replace("\nname: other\n", "")
    sweep = load_files(texts, headers={name: head + rest for name, head in headers.items()})
    again = tmp_path / "sweep.yaml"
    again.write_text(sweep.text, encoding="utf-8")

    assert sweep.question == discovery.question(sweep.text) == "does a help? does b help?"
    loaded = load_files({"sweep.yaml": sweep.text}, headers={"sweep.yaml": ""})
    assert loaded.trials == sweep.trials
    assert loaded.text == sweep.text
    assert loaded.question == sweep.question


def test_mistakes_of_all_files_are_told_at_their_places(load_files: LoadFiles) -> None:
    broken = {
        "a.yaml": "trials: [{grid: {model.preset: [tyny]}}]\n",
        "b.yaml": "trials: [}\n",
        "c.yaml": SMALL + "seeds: 3\n",
    }
    found = told(load_files, broken)

    assert [line.split(";")[0] for line in found] == [
        "a.yaml:6:33: trials[0].grid.model.preset[0]: plain has no preset tyny",
        "b.yaml:6:10: not valid YAML: expected the node content, but found '}'",
        "c.yaml:7:8: seeds: must be a list, got 3",
    ]


def test_mistakes_in_a_joined_text_are_told_at_its_own_lines(
    load_files: LoadFiles, load: Load
) -> None:
    text = load_files({"a.yaml": TINY, "b.yaml": SMALL}).text.replace("small", "smoll")
    line = next(i for i, written in enumerate(text.splitlines(), 1) if "smoll" in written)

    (problem,) = told(load_files, {"sweep.yaml": text}, headers={"sweep.yaml": ""})
    assert problem.startswith(f"sweep.yaml:{line}:")


def test_other_names_are_refused_once_with_who_says_what(load_files: LoadFiles) -> None:
    (problem,) = told(
        load_files,
        {"a.yaml": TINY, "b.yaml": TINY, "c.yaml": "seeds: [7]\n"},
        headers={"b.yaml": OTHER_NAME},
    )

    assert problem == (
        "b.yaml:2:7: name: the files of one sweep carry one name, got test in a.yaml, c.yaml; "
        "other in b.yaml; write the same name: in all of them, or name only files that belong together"
    )


def test_a_missing_name_is_no_other_name(load_files: LoadFiles) -> None:
    header = OTHER_NAME.replace("name: other\n", "")
    (problem,) = told(load_files, {"a.yaml": TINY, "b.yaml": SMALL}, headers={"b.yaml": header})

    assert problem.startswith("b.yaml:1:1: name: is missing")


def test_a_trial_that_another_file_has_is_told_there(load_files: LoadFiles) -> None:
    both = "trials: [{set: {model.preset: tiny}}, {set: {model.preset: small}}]\n"
    (problem,) = told(load_files, {"a.yaml": SMALL, "b.yaml": both})

    assert problem.startswith(
        "b.yaml:6:39: trials[1]: trials[1] is the same trial as trials[0].grid model.preset=small of a.yaml"
    )


def test_another_seed_is_another_trial(load_files: LoadFiles) -> None:
    sweep = load_files({"a.yaml": SMALL, "b.yaml": SMALL + "seeds: [1]\n"})

    assert [trial.seed for trial in sweep.trials] == [0, 1]


def test_too_many_trials_are_counted_over_all_files(load_files: LoadFiles) -> None:
    many = "trials: [{{grid: {{data.seed: {}}}}}]\nseeds: {}\n"
    (problem,) = told(
        load_files,
        {
            "a.yaml": many.format(list(range(300)), list(range(200))),
            "b.yaml": many.format(list(range(300, 600)), list(range(300))),
        },
    )

    assert problem.startswith(
        "b.yaml:6:10: trials[0]: 150,000 trials, of which this entry makes 90,000"
    )


def test_no_file_at_all_is_no_sweep() -> None:
    with pytest.raises(ValueError, match="name at least one sweep file"):
        load_sweep([])

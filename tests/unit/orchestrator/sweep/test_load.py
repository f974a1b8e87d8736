"""A whole sweep file, against the architectures and data sources that there are."""

import json
import re
from pathlib import Path

import pytest

from orchestrator.planning.pricing import account
from orchestrator.records.errors import ConfigError
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.sweep.load import load_sweep
from orchestrator.sweep.parsing import discovery

TEXT = """# Question: at equal training FLOPs, how much factual recall
#           does a memory table buy?
# Run:      memscale submit memory_recall.yaml
name: memory_recall
data:    {source: biographies, n_people: 2_000, seed: 0}
train:   {tokens: 10_000_000, batch_tokens: 8_192, seq_len: 256, lr: 3.0e-3}
model:   {architecture: dense, preset: 3m}
trials:
  - grid: {model.preset: [1m, 3m]}
  - set:  {model.architecture: memory_plus}
    grid: {model.preset: [1m, 3m], model.n_keys: [64, 128]}
    match: {training_flops: dense}
  - isoflop: {budgets_flops: [1.0e+14], architectures: [dense, memory_plus], sizes: 3}
  - ladder: {architectures: [dense], sizes: [d32, 500_000]}
seeds: [0, 1]
resources: {gpus: auto}
retries: {failure: 2, preemption: 100}
logging: {every_steps: 20}
"""

OWN_SUITE = """about: a test
tasks: {mine: {file: a.jsonl, origin: here, kind: choices, prompt: "{{question}}"}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "memory_recall.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrialSpec, ...]:
    """Return the trials of the file as it stands above."""
    path = tmp_path_factory.mktemp("plain") / "memory_recall.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return tuple(load_sweep(path).trials)


def test_a_sweep_knows_what_its_file_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    sweep = load_sweep(Path(file.name))

    assert sweep.name == "memory_recall"
    assert sweep.question == (
        "at equal training FLOPs, how much factual recall does a memory table buy?"
    )
    assert set(sweep.files) == {file}
    assert len(sweep.files) == len(sweep.trials)
    assert sweep.text == TEXT
    assert len(sweep.trials) == 2 * (2 + 4 + 6 + 2)
    assert len({trial.trial_id for trial in sweep.trials}) == len(sweep.trials)
    assert all(trial.sweep == "memory_recall" for trial in sweep.trials)
    assert all(trial.retries.failure == 2 for trial in sweep.trials)
    assert all(trial.logging.every_steps == 20 for trial in sweep.trials)


def test_specs_survive_their_file(trials: tuple[TrialSpec, ...]) -> None:
    for trial in trials:
        assert TrialSpec.from_json(json.loads(json.dumps(trial.to_json()))) == trial


def test_what_is_no_part_of_a_result_is_no_part_of_its_name(
    file: Path, trials: tuple[TrialSpec, ...]
) -> None:
    before = [trial.trial_id for trial in trials]
    file.write_text(
        TEXT.replace("failure: 2", "failure: 5")
        .replace("gpus: auto", "gpus: 1, cpus: 3")
        .replace("every_steps: 20", "every_steps: 5")
        .replace("name: memory_recall", "name: other")
    )

    assert [trial.trial_id for trial in load_sweep(file).trials] == before


def test_benchmarks_are_no_part_of_a_trials_name(file: Path, trials: tuple[TrialSpec, ...]) -> None:
    before = [trial.trial_id for trial in trials]
    (file.parent / "benchmarks").mkdir()
    (file.parent / "qa.jsonl").touch()
    (file.parent / "benchmarks/a.jsonl").touch()
    (file.parent / "own.yaml").write_text(OWN_SUITE)
    asked = (
        "evaluation: {suites: [own.yaml], questions: qa.jsonl, at: [0.25, 1], data: benchmarks}\n"
    )
    file.write_text(TEXT + asked)

    after = load_sweep(file).trials

    assert [trial.trial_id for trial in after] == before
    schedule = after[0].evaluation
    assert schedule is not None
    assert (schedule.suites, schedule.rows) == ((str(file.parent / "own.yaml"),), None)
    assert schedule.data == str(file.parent / "benchmarks")
    assert schedule.questions == str(file.parent / "qa.jsonl")
    assert schedule.steps(10) == {3, 10}
    assert TrialSpec.from_json(json.loads(json.dumps(after[0].to_json()))) == after[0]


def test_a_match_with_itself_alone_is_said(file: Path) -> None:
    """In a grid over architectures one of them is the counterpart, which is meant."""
    head = TEXT[: TEXT.index("trials:")]
    entry = (
        "trials:\n  - {grid: {model.architecture: [dense, pythia]}, match: {total_params: dense}}\n"
    )
    file.write_text(head + entry)
    assert load_sweep(file).warnings == ()

    file.write_text(head + entry.replace(", pythia", ""))
    (warning,) = load_sweep(file).warnings
    assert warning == (
        f"{file}:9:65: trials[0].match.total_params compares dense with itself, which changes "
        "nothing; name another architecture, or leave match out"
    )


@pytest.mark.parametrize("wrong", ["[memory_plus, peer]", "{memory_plus: 1}"])
def test_no_name_beside_a_match_is_a_mistake_among_others(file: Path, wrong: str) -> None:
    file.write_text(
        TEXT.replace("{model.architecture: memory_plus}", f"{{model.architecture: {wrong}}}")
        .replace("lr: 3.0e-3", "lr: -3.0e-3")
        .replace("seeds: [0, 1]", "seeds: two")
    )
    with pytest.raises(ConfigError) as raised:
        load_sweep(file)

    assert [problem.key for problem in raised.value.problems] == [
        "train.lr",
        "trials[1].set.model.architecture",
        "seeds",
    ]


@pytest.mark.parametrize("written", ["16", "'16'", "1_6"])
def test_a_preset_without_its_letter_is_recognised(file: Path, written: str) -> None:
    file.write_text(TEXT.replace("preset: 3m", f"preset: {written}"))
    with pytest.raises(ConfigError) as raised:
        load_sweep(file)

    (problem,) = raised.value.problems
    assert (problem.message, problem.fix) == (f"dense has no preset {written}", "write d16")


@pytest.mark.parametrize("folder", ["unset", "no_folder", "."])
def test_everything_that_an_evaluation_lacks_is_said_at_once(
    file: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file's other mistakes, each with its place: not one after the other."""
    monkeypatch.delenv("MEMSCALE_BENCHMARKS", raising=False)
    (file.parent / "own.yaml").write_text(OWN_SUITE)
    data = "" if folder == "unset" else f", data: {folder}"
    file.write_text(
        "name: b1\n"
        "data: {source: text, path: no.jsonl, vocab_size: 1_024}\n"
        "train: {tokens: 100_352, batch_tokens: 1_024, seq_len: 128, lr: 1.0e-2}\n"
        "model: {architecture: dense, preset: d16}\n"
        f"evaluation: {{suites: [smal, own.yaml], at: [2], questions: qa.jsonl{data}}}\n"
    )
    with pytest.raises(ConfigError) as raised:
        load_sweep(file)

    places = [(p.line, p.column, p.key) for p in raised.value.problems]
    assert (places[0], raised.value.problems[0].file) == ((2, 28, "data.path"), file)
    assert [place for place in places[1:] if "[" not in place[2]] == [
        *([(5, 1, "evaluation")] if folder == "unset" else []),
        (5, 44, "evaluation.at"),
        (5, 60, "evaluation.questions"),
        *([(5, 76, "evaluation.data")] if folder == "no_folder" else []),
    ]
    suites = [(p.column, p.message) for p in raised.value.problems if "suites[" in p.key]
    assert suites[0][0] == 23 and suites[0][1].startswith("suite 'smal': there are")  # noqa: PT018
    lacking = [(column, message.partition(":")[0]) for column, message in suites[1:]]
    assert lacking == ([(29, str(file.parent / "a.jsonl"))] if folder == "." else [])


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ("{suites: []}", "must name at least one suite, unless there are questions"),
        ("{at: [1.0]}", "must name at least one suite"),
        ("{questions: [a, b]}", "questions"),
        ("{suites: [small], at: [0, 1]}", "must be shares of the training"),
        ("{suites: [small], rows: 0}", "rows"),
        ("{suite: [small]}", "suite"),
        ("{suites: [small], skipped: as I say}", "unknown key 'skipped'"),
        ("[small]", "mapping"),
    ],
)
def test_a_wrong_evaluation_section_is_named(file: Path, section: str, what: str) -> None:
    # One trial: searching the sizes of all takes most of the others' time.
    file.write_text(re.sub("trials:\n(  .*\n)+", "", f"{TEXT}evaluation: {section}\n"))
    with pytest.raises(ConfigError, match="evaluation") as raised:
        load_sweep(file)
    assert what in str(raised.value)


def test_adding_a_seed_keeps_the_other_trials(file: Path, trials: tuple[TrialSpec, ...]) -> None:
    before = {trial.trial_id for trial in trials}
    file.write_text(TEXT.replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    after = {trial.trial_id for trial in load_sweep(file).trials}

    assert before < after
    assert len(after) == len(before) * 3 // 2


def test_equal_flops_are_equal(trials: tuple[TrialSpec, ...]) -> None:
    flops = [account(trial)["training_flops"] for trial in trials if trial.seed == 0]

    assert flops[2:4] == [pytest.approx(flops[0], rel=0.01)] * 2
    assert flops[4:6] == [pytest.approx(flops[1], rel=0.01)] * 2
    assert flops[6:12] == [pytest.approx(1e14, rel=0.01)] * 6


@pytest.mark.parametrize("name", sorted(discovery.bundled()))
def test_every_bundled_sweep_loads(name: str) -> None:
    try:
        sweep = load_sweep(Path(name))
    except ConfigError as error:
        # A sweep on somebody's own files: without them, all that is wrong is that they are not there.
        assert all("no " in p.message for p in error.problems), str(error)  # noqa: PT017
        assert all("expected: " in p.fix for p in error.problems)  # noqa: PT017
        return

    assert sweep.trials
    assert sweep.question, "a reader wants the question before spending the compute"
    assert sweep.warnings == ()


def test_problems_name_the_file_as_it_was_typed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(TEXT.replace("lr: 3.0e-3", "lr: 3e-3").replace("n_people", "n_peple"))
    with pytest.raises(ConfigError) as caught:
        load_sweep(Path(file.name))

    assert [str(problem).split(": ")[0] for problem in caught.value.problems] == [
        "memory_recall.yaml:5:32",
        "memory_recall.yaml:6:70",
    ]

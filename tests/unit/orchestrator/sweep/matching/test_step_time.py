"""`match: {step_time: …}`: measured once, pinned beside the sweep file, told with the device."""

import json
import logging
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.errors import StoreError
from orchestrator.sweep.load import Sweep

Load = Callable[..., Sweep]
Problems = Callable[..., list[str]]
MakeTimer = Callable[..., Any]

TABLE = """
trials:
  - set: {model.architecture: table}
    match: {step_time: plain}
"""
BY_TOKENS = TABLE.replace("plain", "plain, solve: tokens").replace(
    "}\n    m", ", train.batch_tokens: 16}\n    m"
)


def step_s(model: Any) -> float:
    """Like the timer of conftest.py."""
    return 0.010 + 0.0001 * (model["d_ff"] + model.get("n_keys", 0))


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    return tmp_path / "sweep.step_times.json"


def test_the_field_is_solved_for_the_counterparts_step_time(
    load: Load, make_timer: MakeTimer
) -> None:
    header = "\nname: test\ndata: {source: numbers, n: 10}\ntrain: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}\nmodel: {architecture: plain, d_model: 8, d_ff: 400}\n"
    sweep = load(TABLE, header=header, timer=make_timer(noise=0.01))
    (trial,) = sweep.trials

    assert step_s(trial.model) == pytest.approx(0.010 + 0.04, rel=0.015)
    assert trial.model["d_ff"] != 400


def test_a_number_of_seconds_is_met(load: Load, make_timer: MakeTimer) -> None:
    timer = make_timer()
    sweep = load(TABLE.replace("plain", "0.02, solve: n_keys"), timer=timer)
    (trial,) = sweep.trials

    assert step_s(trial.model) == pytest.approx(0.02, rel=0.011)
    assert {len(request["models"]) for request in timer.requests} == {1}
    (told,) = sweep.matches.values()
    assert f"n_keys 16 → {trial.model['n_keys']}, step time " in str(told)
    assert "× the 0.02 asked for (measured on abacus, 20" in str(told)


def test_tokens_make_the_whole_training_as_long(load: Load, make_timer: MakeTimer) -> None:
    sweep = load(BY_TOKENS, timer=make_timer())
    (trial,) = sweep.trials

    steps = trial.train["tokens"] / 16
    assert steps == trial.train["tokens"] // 16
    assert steps * step_s(trial.model) == pytest.approx(40 * step_s({"d_ff": 16}), rel=0.02)
    (told,) = sweep.matches.values()
    assert f"tokens 640 → {trial.train['tokens']}, training time " in str(told)


def test_the_uncertainty_is_that_of_the_ratio_which_is_told(
    load: Load, make_timer: MakeTimer, pins: Path
) -> None:
    load(BY_TOKENS, timer=make_timer())
    content = json.loads(pins.read_text(encoding="utf-8"))
    ((key, entry),) = content["solutions"].items()
    content["solutions"][key] = entry | {"ratio": 1.8137, "ratio_uncertainty": 0.00867}
    pins.write_text(json.dumps(content), encoding="utf-8")
    (told,) = load(BY_TOKENS).matches.values()

    assert f"training time {told.ratio:.3f} ± 0.005 × plain" in str(told)


def test_whole_steps_that_are_too_coarse_are_told(
    problems: Problems, make_timer: MakeTimer
) -> None:
    (told,) = problems(BY_TOKENS.replace("16}", "128}"), timer=make_timer())

    assert "5 steps of plain take as long as 4." in told
    assert told.endswith("or raise train.tokens to 7,296 or more")


def test_as_many_tokens_as_are_told_can_be_met(
    load: Load, problems: Problems, make_timer: MakeTimer
) -> None:
    coarse = BY_TOKENS.replace("16}", "128}")
    (told,) = problems(coarse, timer=make_timer())
    enough = told.split()[-3].replace(",", "")

    header = f"""
    name: test
    data: {{source: numbers, n: 10}}
    train: {{tokens: {enough}, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}}
    model: {{architecture: plain, preset: tiny}}
    """
    (match,) = load(coarse, header=textwrap.dedent(header), timer=make_timer()).matches.values()

    assert abs(match.ratio - 1) <= 0.01


def test_what_was_measured_once_holds(load: Load, make_timer: MakeTimer, pins: Path) -> None:
    first, again = make_timer(noise=0.03), make_timer(noise=0.03)
    measured = load(TABLE, timer=first)
    pinned = load(TABLE, timer=again)

    assert first.started == 1
    assert first.requests
    assert not again.started
    assert [t.trial_id for t in measured.trials] == [t.trial_id for t in pinned.trials]
    assert measured.matches == pinned.matches
    assert measured.step_times == pinned.step_times == json.loads(pins.read_text())["solutions"]


def test_deleting_the_file_measures_anew(load: Load, make_timer: MakeTimer, pins: Path) -> None:
    load(TABLE, timer=make_timer())
    pins.unlink()
    again = make_timer()
    load(TABLE, timer=again)

    assert again.requests


def test_the_file_says_what_was_compared_where_and_how_exactly(
    load: Load, make_timer: MakeTimer, pins: Path
) -> None:
    sweep = load(TABLE, timer=make_timer())
    content = json.loads(pins.read_text(encoding="utf-8"))
    ((key, entry),) = content["solutions"].items()

    assert "Commit both" in content["about"]
    assert len(key) == 12
    assert entry["value"] == sweep.trials[0].model["d_ff"]
    assert entry["device"] == "abacus"
    assert entry["versions"] == {"torch": "0.0"}
    assert entry["counterpart_step_s"] == pytest.approx(step_s({"d_ff": 16}))
    assert entry["step_s"] / entry["counterpart_step_s"] == pytest.approx(entry["ratio"])
    assert "d_ff" not in entry["compared"]["model"]
    assert entry["compared"]["counterpart"]["architecture"] == "plain"


def test_what_is_no_part_of_the_comparison_measures_nothing_anew(
    load: Load, make_timer: MakeTimer
) -> None:
    load(TABLE, timer=make_timer())

    # The learning rate, seeds and resources; and a timer that must not be asked.
    text = TABLE + "seeds: [3, 4]\nresources: {cpus: 2, gpus: 0}\n"
    sweep = load(text.replace("table}", "table, train.lr: 2.0e-2}"))

    assert len(sweep.trials) == 2


def test_another_model_batch_optimizer_or_counterpart_is_measured(
    load: Load, make_timer: MakeTimer, pins: Path
) -> None:
    for text in (
        TABLE,
        TABLE.replace("table}", "table, model.n_layers: 3}"),
        TABLE.replace("table}", "table, train.batch_tokens: 128}"),
        TABLE.replace("table}", "table, train.table_optimizer: rowwise}"),
        TABLE.replace("table}", "table, train.table_optimizer: lazy_adamw}"),
        TABLE.replace("plain", "0.012"),
    ):
        load(text, timer=make_timer())

    assert len(json.loads(pins.read_text())["solutions"]) == 6


def test_one_comparison_serves_every_trial_that_makes_it(load: Load, make_timer: MakeTimer) -> None:
    timer = make_timer()
    sweep = load(
        TABLE.replace("    match", "    grid: {train.lr: [0.1, 0.2]}\n    match"), timer=timer
    )

    assert len(sweep.trials) == 2
    once = make_timer()
    load(TABLE.replace("table}", "table, model.n_layers: 3}"), timer=once)
    assert len(timer.requests) == len(once.requests)


def test_nothing_is_measured_for_a_file_with_mistakes(
    problems: Problems, make_timer: MakeTimer
) -> None:
    timer = make_timer()
    told = problems(TABLE + "  - set: {model.n_layer: 3}\n", timer=timer)

    assert len(told) == 1
    assert not timer.started


def test_trials_that_need_a_measurement_may_stand_beside_duplicates(
    problems: Problems, make_timer: MakeTimer
) -> None:
    (told,) = problems(TABLE + TABLE.replace("\ntrials:\n", ""), timer=make_timer())

    assert "trials[1] is the same trial as trials[0]" in told


SHARED = "resources: {ranks: 2, memory_ranks: 2}\n"


@pytest.mark.parametrize(
    "trials",
    [TABLE, TABLE.replace("plain", "both").replace("table", "plain").replace("both", "table")],
)
def test_tables_that_ranks_share_out_are_not_timed(
    problems: Problems, make_timer: MakeTimer, trials: str
) -> None:
    timer = make_timer()
    (told,) = problems(trials + SHARED, timer=timer)

    assert "cannot be timed by one rank, got memory_ranks 2; plan it once with" in told
    assert not timer.requests


def test_steps_that_gather_sharded_parameters_are_not_timed(
    problems: Problems, make_timer: MakeTimer
) -> None:
    timer = make_timer()
    (told,) = problems(TABLE + "resources: {ranks: 2, dense_parameters: sharded}\n", timer=timer)

    assert "got dense_parameters sharded; plan it once with dense_parameters: replicated" in told
    assert not timer.requests


def test_but_what_was_timed_where_they_are_whole_holds(load: Load, make_timer: MakeTimer) -> None:
    (measured,) = load(TABLE, timer=make_timer()).trials
    (shared,) = load(TABLE + SHARED, timer=make_timer(refuses="again")).trials

    assert shared.trial_id == measured.trial_id


def test_models_without_tables_are_timed_whatever_ranks_share(
    load: Load, make_timer: MakeTimer
) -> None:
    timer = make_timer()
    load(TABLE.replace("table", "mixer") + SHARED, timer=timer)

    assert timer.requests


def test_how_a_trial_would_run_is_what_is_timed(load: Load, make_timer: MakeTimer) -> None:
    timer = make_timer()
    load(TABLE + "resources: {cpus: 2, gpus: 0, ranks: 2, micro_batch_tokens: 32}\n", timer=timer)
    request = timer.requests[0]

    assert request["device"] == "cpu"
    assert request["n_threads"] == request["ranks"] == 2
    assert request["micro_batch_tokens"] == 32
    assert request["vocab_size"] == 100
    assert request["train"]["batch_tokens"] == 64
    assert [model["architecture"] for model in request["models"]] == ["table", "plain"]
    assert json.loads(json.dumps(request)) == request


def test_progress_is_logged(
    load: Load, make_timer: MakeTimer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "orchestrator.sweep.matching.step_time"):
        load(TABLE, timer=make_timer())

    assert caplog.messages[0] == "match: table tiny: timing steps against the step time of plain"
    assert "table tiny: d_ff 16: 13.2 ms a step, 1.138 ± 0.000 × plain" in caplog.messages[1]
    assert "kept in" in caplog.messages[-1]


@pytest.mark.parametrize("solve", ["", ", solve: tokens"])
def test_a_machine_that_cannot_tell_is_told(
    problems: Problems, make_timer: MakeTimer, pins: Path, solve: str
) -> None:
    (told,) = problems(TABLE.replace("plain", f"plain{solve}"), timer=make_timer(noise=3.0))

    assert told.startswith("9:5: trials[0].match: ")
    assert not pins.exists()


def test_a_step_time_out_of_reach_is_told(problems: Problems, make_timer: MakeTimer) -> None:
    (told,) = problems(TABLE.replace("plain", "0.001"), timer=make_timer())

    assert "no d_ff gives 0.001 seconds per step within 1 %: the nearest is d_ff 1 with" in told
    assert "make the rest of the model smaller, or solve for another field" in told


def test_a_measurement_that_fails_is_told_once_for_all_trials(
    problems: Problems, make_timer: MakeTimer
) -> None:
    timer = make_timer(refuses="step times could not be measured: CUDA out of memory")
    text = TABLE.replace("    match", "    grid: {train.lr: [0.1, 0.2]}\n    match")
    (told,) = problems(text, timer=timer)

    assert "step times could not be measured: CUDA out of memory" in told
    assert len(timer.requests) == 1


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    problems: Problems, make_timer: MakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    timer = make_timer()
    (told,) = problems(TABLE, timer=timer)

    assert (
        "step times are kept in sweep.step_times.json beside the sweep file, and that folder cannot be written "
        "(permission denied); copy the sweep file into a folder of yours"
    ) in told
    assert not timer.requests


@pytest.mark.parametrize(
    "content", ["{", '{"solutions": []}', '{"solutions": {"KEY": 3}}', '{"solutions": {"KEY": {}}}']
)
def test_a_file_that_memscale_did_not_write_is_no_answer(
    load: Load, make_timer: MakeTimer, pins: Path, content: str
) -> None:
    load(TABLE, timer=make_timer())
    (key,) = json.loads(pins.read_text())["solutions"]
    pins.write_text(content.replace("KEY", key))

    with pytest.raises(StoreError, match=r"sweep\.step_times\.json: .*delete it"):
        load(TABLE, timer=make_timer())


@pytest.mark.parametrize("named", ["plain", "{architecture: plain, preset: tiny}"])
def test_the_trial_that_is_its_own_counterpart_is_not_measured(load: Load, named: str) -> None:
    assert load(f"trials: [{{match: {{step_time: {named}}}}}]").matches == {}


def test_a_larger_model_of_the_same_architecture_gets_the_seconds_of_a_written_one(
    load: Load, make_timer: MakeTimer
) -> None:
    text = BY_TOKENS.replace("model.architecture: table", "model.d_ff: 26").replace(
        "step_time: plain", "step_time: {architecture: plain, preset: tiny}"
    )
    sweep = load(text, timer=make_timer())
    (trial,) = sweep.trials

    seconds = trial.train["tokens"] / 16 * step_s({"d_ff": 26})
    assert seconds == pytest.approx(40 * step_s({"d_ff": 16}), rel=0.02)
    assert trial.match == {"step_time": "plain tiny", "solve": "tokens"}


ALIKE = {"a.yaml": TABLE, "b.yaml": TABLE.replace("table}", "table, train.lr: 0.5}")}
"""Two files whose trials differ in what no step takes longer for."""


def solutions(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))["solutions"]
    return found


def test_the_files_of_a_sweep_share_their_answers(
    load_files: Load, make_timer: MakeTimer, tmp_path: Path
) -> None:
    timer, alone = make_timer(noise=0.01), make_timer(noise=0.01)
    first, second = load_files(ALIKE, timer=timer).trials

    assert first.model == second.model
    assert solutions(tmp_path, "a.step_times.json")
    assert not (tmp_path / "b.step_times.json").exists()
    # In the other order the file that asks first has no answer of its own.
    turned = load_files(dict(reversed(ALIKE.items()))).trials
    assert {t.trial_id for t in turned} == {first.trial_id, second.trial_id}
    (tmp_path / "a.step_times.json").unlink()
    load_files({"a.yaml": TABLE}, timer=alone)
    assert len(alone.requests) == len(timer.requests)


def test_what_is_new_is_kept_beside_the_file_that_asks(
    load_files: Load, make_timer: MakeTimer, tmp_path: Path
) -> None:
    load_files({"a.yaml": TABLE}, timer=make_timer())
    deeper = TABLE.replace("table}", "table, model.n_layers: 3}")
    sweep = load_files({"a.yaml": TABLE, "b.yaml": deeper}, timer=make_timer())

    kept = [solutions(tmp_path, f"{name}.step_times.json") for name in "ab"]
    assert [len(one) for one in kept] == [1, 1]
    assert sweep.step_times == kept[0] | kept[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [(TABLE, "d_ff 1 and 2;"), (BY_TOKENS, "ratio 1.5 and 2.5;")],
    ids=["a value", "tokens"],
)
def test_two_answers_to_one_question_are_an_error_that_names_both_files(
    load_files: Load, make_timer: MakeTimer, tmp_path: Path, text: str, told: str
) -> None:
    alike = {"a.yaml": text, "b.yaml": text.replace("table,", "table, train.lr: 0.5,")}
    alike["b.yaml"] = alike["b.yaml"].replace("table}", "table, train.lr: 0.5}")
    load_files(alike, timer=make_timer())
    a, b = (tmp_path / f"{name}.step_times.json" for name in "ab")
    content = json.loads(a.read_text(encoding="utf-8"))
    ((key, answer),) = content["solutions"].items()
    for number, file in enumerate((a, b), 1):
        value = None if answer["value"] is None else number
        differs = {"value": value, "ratio": number + 0.5}
        solved = {"solutions": {key: {**answer, **differs}}}
        file.write_text(json.dumps(content | solved), encoding="utf-8")

    with pytest.raises(StoreError) as caught:
        load_files(alike)

    message = str(caught.value)
    assert message.startswith(f"{a} and {b}: solutions.{key}: two answers for table ")
    assert told in message
    assert message.endswith(
        "keep the one that trained trials rest on, and remove the other from its file"
    )
    # One of them alone contradicts nobody.
    assert load_files({"b.yaml": alike["b.yaml"]}).trials


def test_answers_that_lead_to_the_same_trials_are_no_contradiction(
    load_files: Load, make_timer: MakeTimer, tmp_path: Path
) -> None:
    (trial,) = load_files({"a.yaml": TABLE}, timer=make_timer()).trials
    content = json.loads((tmp_path / "a.step_times.json").read_text(encoding="utf-8"))
    for answer in content["solutions"].values():
        answer["ratio"] *= 1.003
    (tmp_path / "b.step_times.json").write_text(json.dumps(content), encoding="utf-8")

    assert load_files(ALIKE).trials[0].trial_id == trial.trial_id


def test_a_measurement_that_fails_is_told_in_every_entry_that_asks(
    problems: Problems, make_timer: MakeTimer
) -> None:
    timer = make_timer(refuses="CUDA out of memory; make the model smaller")
    again = ALIKE["b.yaml"].replace("\ntrials:\n", "")
    told = problems(TABLE + again, timer=timer)

    assert [line.partition(" (in")[0] for line in told] == [
        f"{line}:5: trials[{n}].match: table: CUDA out of memory" for n, line in enumerate((9, 11))
    ]
    assert len(timer.requests) == 1

"""Sizes, budgets and matches: what is solved, and how close it comes."""

from collections.abc import Callable

import pytest

from orchestrator.records.trial_spec import TrialSpec
from orchestrator.sweep.load import Sweep
from workloads.training.config import TrainConfig

Load = Callable[..., Sweep]
Problems = Callable[..., list[str]]


@pytest.fixture
def training_flops() -> Callable[[TrialSpec], float]:
    """Count a trial's training FLOPs from its record alone."""

    def count(trial: TrialSpec) -> float:
        model, train = trial.model, TrainConfig(**trial.train)
        blocks = model["n_layers"] * (
            4 * model["d_model"] ** 2 + 3 * model["d_model"] * model["d_ff"]
        )
        forward = 2.0 * (blocks + 100 * model["d_model"]) + 2.0 * train.seq_len * model["d_model"]
        forward += 4.0 * model.get("n_keys", 0) * model["d_model"]
        return 3 * forward * train.steps * train.batch_tokens

    return count


Flops = Callable[[TrialSpec], float]


def test_match_solves_the_free_dimension_for_the_counterparts_flops(
    load: Load, training_flops: Flops
) -> None:
    sweep = load(
        """
        trials:
          - set: {model.d_ff: 64}
            grid: {model.architecture: [plain]}
          - set: {model.architecture: table}
            match: {training_flops: plain}
        """
    )
    plain, table = sweep.trials

    assert table.model["d_ff"] < 16 < plain.model["d_ff"], "the counterpart is the base's preset"
    tiny = load("").trials[0]
    assert training_flops(table) == pytest.approx(training_flops(tiny), rel=0.01)
    assert table.train["tokens"] == tiny.train["tokens"]


def test_match_of_the_counterpart_itself_changes_nothing(load: Load) -> None:
    matched = load("trials: [{match: {training_flops: plain}}]").trials[0]

    assert matched.trial_id == load("").trials[0].trial_id


def test_match_solves_tokens_where_asked(load: Load, training_flops: Flops) -> None:
    sweep = load(
        """
        trials:
          - set: {model.architecture: table, train.batch_tokens: 16}
            match: {training_flops: plain, solve: tokens}
        """
    )
    (table,) = sweep.trials

    assert training_flops(table) == pytest.approx(training_flops(load("").trials[0]), rel=0.01)
    assert table.model["d_ff"] == 16
    assert table.train["tokens"] % 16 == 0


def test_match_solves_for_a_number(load: Load, training_flops: Flops) -> None:
    sweep = load(
        """
        trials:
          - set: {model.preset: small}
            match: {training_flops: 4.0e+7}
        """
    )

    assert training_flops(sweep.trials[0]) == pytest.approx(4e7, rel=0.01)


WRITTEN = "match: {training_flops: {architecture: plain, preset: small%s}, solve: tokens}"
"""A match with a model that the sweep file writes."""


@pytest.mark.parametrize("own", ["model.d_model: 40", "model.architecture: table"])
@pytest.mark.parametrize("field", ["", ", d_ff: 64"])
def test_match_with_a_written_model(
    load: Load, training_flops: Flops, own: str, field: str
) -> None:
    sweep = load(
        f"""
        trials:
          - set: {{{own}, train.batch_tokens: 16}}
            {WRITTEN % field}
        """
    )
    small = "model.preset: small" + field.replace("d_ff", "model.d_ff")
    (counterpart,) = load(f"trials: [{{set: {{{small}}}}}]").trials
    (trial,) = sweep.trials

    assert training_flops(trial) == pytest.approx(training_flops(counterpart), rel=0.01)
    assert trial.model["d_ff"] == 16, "the trial keeps its own sizes"
    named = "plain small" + field.replace(":", "").replace(",", ";")
    assert trial.match == {"training_flops": named, "solve": "tokens"}
    (told,) = sweep.matches.values()
    assert str(told).endswith(f"× {named}")


@pytest.mark.parametrize(("solve", "d_ff"), [("", 32), (", solve: n_keys", 16)])
def test_match_with_a_written_model_solves_for_a_field(
    load: Load, training_flops: Flops, solve: str, d_ff: int
) -> None:
    """Also in a grid in which the written model itself stands, which has no such field."""
    matched = f"match: {{training_flops: {{architecture: plain, preset: small}}{solve}}}"
    own = f", model.d_ff: {d_ff}" if solve else ""
    sweep = load(
        f"""
        trials:
          - set: {{model.preset: small}}
            {matched}
          - set: {{model.preset: small, model.architecture: table{own}}}
            {matched}
        """
    )
    plain, table = sweep.trials

    assert (plain.model["d_ff"], plain.match) == (32, None)
    assert training_flops(table) == pytest.approx(training_flops(plain), rel=0.01)
    changed = "n_keys" if solve else "d_ff"
    assert table.match == {"training_flops": "plain small", "solve": changed}


def test_match_with_a_written_model_leaves_that_model_as_it_is(load: Load) -> None:
    small = "set: {model.preset: small}"
    (matched,) = load(f"trials: [{{{small}, {WRITTEN % ''}}}]").trials

    assert matched.trial_id == load(f"trials: [{{{small}}}]").trials[0].trial_id


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("{preset: small}", "a model to compare with needs an architecture"),
        ("{architecture: plane, preset: small}", "no architecture is called plane"),
        ("{architecture: plain, preset: smal}", "plain has no preset smal"),
        ("{architecture: plain, preset: [tiny, small]}", "write one entry of trials for each"),
        ("[plain, table]", "must be one architecture, one model or one number, got a list"),
        ("{architecture: plain, preset: small, n_kyes: 3}", "unknown key 'n_kyes'"),
        ("{architecture: plain, preset: small, d_ff: -1}", "d_ff: must be at least 1"),
        ("{architecture: mixer, preset: small, window: 8}", "window (8) of mixer, got 16"),
    ],
)
def test_a_mistake_in_a_written_model_is_told_where_it_stands(
    problems: Problems, model: str, problem: str
) -> None:
    (told,) = problems(f"trials: [{{match: {{training_flops: {model}, solve: tokens}}}}]")

    assert problem in told
    assert told.split(": ")[1].startswith("trials[0].match.training_flops")


def test_match_holds_for_each_trial_of_a_grid(load: Load, training_flops: Flops) -> None:
    grid = "{model.preset: [tiny, small], model.n_layers: [1, 3], model.d_model: [64]}"
    plain = load(f"trials: [{{grid: {grid}}}]").trials
    table = load(
        f"trials: [{{set: {{model.architecture: table}}, grid: {grid}, match: {{training_flops: plain}}}}]"
    ).trials

    for one, other in zip(plain, table, strict=True):
        assert training_flops(other) == pytest.approx(training_flops(one), rel=0.01)


def test_a_match_that_cannot_be_reached_says_what_can(problems: Problems) -> None:
    (problem,) = problems("trials: [{match: {training_flops: 1.0e+5}}]")

    assert "no d_ff gives 1.0e+05 training FLOPs within 1 %: the nearest is d_ff 1 with" in problem
    assert "make the rest of the model smaller" in problem


def test_a_preset_that_the_counterpart_lacks_is_told(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - set: {model.preset: wide}
            match: {training_flops: table}
        """
    )

    assert "there is no table model to compare with: table has no preset wide" in problem


def test_a_counterpart_without_that_preset_may_be_made_of_keys(
    load: Load, training_flops: Flops
) -> None:
    sweep = load(
        """
        trials:
          - set: {model.preset: wide, model.d_model: 32, model.d_ff: 40, train.batch_tokens: 16}
            match: {training_flops: table, solve: tokens}
        """
    )

    table = "{model.architecture: table, model.preset: null, model.d_model: 32, model.d_ff: 40}"
    (counterpart,) = load(f"trials: [{{set: {table}}}]").trials
    assert training_flops(sweep.trials[0]) == pytest.approx(training_flops(counterpart), rel=0.01)


def test_isoflop_spends_each_budget_within_one_percent(load: Load, training_flops: Flops) -> None:
    sweep = load(
        """
        trials:
          - isoflop: {budgets_flops: [1.0e+11, 3.0e+11], architectures: [plain, table], sizes: 5}
        """
    )

    assert len(sweep.trials) == 2 * 2 * 5
    for i, budget in enumerate((1e11, 3e11)):
        for trial in sweep.trials[10 * i : 10 * (i + 1)]:
            assert training_flops(trial) == pytest.approx(budget, rel=0.01)
            assert trial.preset is None
    widths = [trial.model["d_model"] for trial in sweep.trials[:5]]
    assert widths == sorted(set(widths)), "sizes grow"
    assert "sweep.yaml:5:30: model.preset is not used by trials[0].isoflop" in sweep.warnings[0]


def test_isoflop_puts_the_asked_tokens_per_parameter_in_the_middle(load: Load) -> None:
    sweep = load(
        """
        trials:
          - set: {train.batch_tokens: 16}
            isoflop: {budgets_flops: [1.0e+11], architectures: [plain], sizes: 3, tokens_per_param: 40}
        """
    )
    middle = sweep.trials[1]
    blocks = 2 * (
        4 * middle.model["d_model"] ** 2 + 3 * middle.model["d_model"] * middle.model["d_ff"]
    )

    assert middle.train["tokens"] / blocks == pytest.approx(40, rel=0.15)


def test_isoflop_asks_for_a_batch_small_enough_for_every_size(
    load: Load, problems: Problems
) -> None:
    text = """
        trials:
          - set: {{train.batch_tokens: {}}}
            isoflop: {{budgets_flops: [1.0e+9], architectures: [plain], sizes: 4}}
        """
    (problem,) = problems(text.format(4096))
    advised = int(problem.partition("lower train.batch_tokens to ")[2].split()[0])

    assert "cannot be hit within 1 % by whole steps of 4,096 tokens" in problem
    assert len(load(text.format(advised)).trials) == 4


def test_ladder_gives_tokens_in_proportion_to_parameters(load: Load) -> None:
    sweep = load(
        """
        trials:
          - ladder: {architectures: [plain, table], sizes: [tiny, small, 9_000], tokens_per_param: 10}
        """
    )

    assert [t.preset for t in sweep.trials] == ["tiny", "small", None] * 2
    for trial in sweep.trials:
        d_model, d_ff = trial.model["d_model"], trial.model["d_ff"]
        wanted = 10 * 2 * (4 * d_model**2 + 3 * d_model * d_ff)
        assert wanted <= trial.train["tokens"] < wanted + 64
        assert trial.train["tokens"] % 64 == 0
    assert sweep.trials[5].origin == "trials[0].ladder table 9_000, seed 0"


def test_ladder_and_match_work_together(load: Load, training_flops: Flops) -> None:
    ladder = "ladder: {architecture: plain, sizes: [tiny, 9_000]}"
    plain = load(f"trials: [{{{ladder}}}]").trials
    table = load(
        f"trials: [{{{ladder.replace('plain', 'table')}, match: {{training_flops: plain}}}}]"
    ).trials

    for one, other in zip(plain, table, strict=True):
        assert other.train["tokens"] == one.train["tokens"]
        assert training_flops(other) == pytest.approx(training_flops(one), rel=0.01)


def test_a_size_that_does_not_exist_is_told_where_it_is_written(problems: Problems) -> None:
    (problem,) = problems("trials: [{ladder: {architectures: [plain], sizes: [9_000, 7]}}]")

    assert (
        problem
        == "6:59: trials[0].ladder.sizes[1]: non_embedding_params: no member is near 7 (in 1 of 2 trials, first trials[0].ladder plain 7); ask for at least 100"
    )


def test_tokens_need_not_be_written_where_they_are_solved(load: Load) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: plain}
"""
    sweep = load("trials: [{ladder: {architectures: [plain], sizes: [tiny]}}]", header=header)

    assert sweep.trials[0].train["tokens"] > 0
    assert not sweep.warnings


def test_matching_tokens_with_a_counterpart_needs_its_tokens(problems: Problems) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: table, preset: tiny}
"""
    (problem,) = problems(
        "trials: [{match: {training_flops: plain, solve: tokens}}]", header=header
    )

    assert (
        "compares with a plain model of train.tokens tokens; write tokens: under train:" in problem
    )


MIXER = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: mixer, preset: tiny}
"""


def test_sequences_longer_than_a_model_reads_are_refused(problems: Problems) -> None:
    (problem,) = problems(
        "trials: [{grid: {model.window: [8, 16, 32]}}, {set: {model.architecture: plain}}]",
        header=MIXER,
    )

    assert problem == (
        "4:49: train.seq_len: must be at most window (8) of mixer, got 16 "
        "(in 1 of 4 trials, first trials[0].grid model.window=8); "
        "lower train.seq_len to 8, or raise model.window"
    )


def test_a_length_from_a_recipe_is_told_there(problems: Problems) -> None:
    (problem,) = problems(
        "trials: [{set: {train.recipe: slow, model.window: 8}}]",
        header=MIXER.replace("batch_tokens: 64, seq_len: 16, ", ""),
    )

    assert problem.startswith(
        "6:31: trials[0].set.train.recipe: seq_len must be at most window (8)"
    )


def test_what_is_not_causal_is_written_down_beside_the_identity(load: Load) -> None:
    wide, narrow, plain = load(
        """
        trials:
          - set: {model.window: 16}
          - set: {model.window: 8, train.seq_len: 8}
          - set: {model.architecture: plain}
        """,
        header=MIXER,
    ).trials

    assert wide.not_causal == (
        "in training: the last token is mixed into all; in evaluation: so it is"
    )
    assert narrow.not_causal is plain.not_causal is None
    assert "not_causal" not in wide.identity()

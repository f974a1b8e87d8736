"""Presets, inherited keys, defaults, and where a mistake is told."""

from collections.abc import Callable

import pytest

from orchestrator.records.errors import ExperimentError
from orchestrator.sweep.load import Sweep

Load = Callable[..., Sweep]
Problems = Callable[..., list[str]]


def test_every_default_is_written_out(load: Load) -> None:
    (trial,) = load("").trials

    assert trial.data == {"source": "numbers", "n": 10, "seed": 0}
    assert trial.model == {
        "architecture": "plain",
        "d_model": 8,
        "d_ff": 16,
        "n_layers": 2,
        "dropout": 0.0,
        "skip": None,
    }
    assert trial.train["schedule"] == "cosine"
    assert not trial.accounting


def test_keys_override_the_preset_wherever_both_are_written(load: Load) -> None:
    sweep = load(
        """
        trials:
          - set: {model.d_ff: 99}
          - grid: {model.preset: [tiny, small]}
            set: {model.d_model: 12}
        """
    )

    assert [(t.model["d_model"], t.model["d_ff"]) for t in sweep.trials] == [
        (8, 99),
        (12, 16),
        (12, 32),
    ]


def test_an_entry_may_want_no_preset(load: Load, problems: Problems) -> None:
    entry = "trials: [{{set: {{model.preset: null, model.d_model: 10{}}}}}]"

    (trial,) = load(entry.format(", model.d_ff: 20")).trials
    assert (trial.preset, trial.model["d_model"], trial.model["d_ff"]) == (None, 10, 20)

    (problem,) = problems(entry.format(""))
    assert "missing d_ff; add a preset (tiny, small, wide), or for example d_ff: 352" in problem


def test_base_keys_that_another_architecture_lacks_are_left_out_with_a_warning(load: Load) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: table, preset: tiny, n_keys: 32}
"""
    sweep = load(
        """
        trials:
          - set: {model.architecture: plain}
          - set: {model.n_layers: 3}
        """,
        header=header,
    )

    assert "n_keys" not in sweep.trials[0].model
    assert sweep.trials[1].model["n_keys"] == 32
    (warning,) = sweep.warnings
    assert warning.endswith(
        "sweep.yaml:5:44: model.n_keys is left out where the architecture is plain, "
        "which has no such key"
    )


def test_an_entrys_own_key_must_be_known_to_its_architecture(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - set: {model.architecture: table, model.n_keys: 8}
          - set: {model.n_keys: 8}
        """
    )

    assert problem.startswith("9:11: trials[1].set.model.n_keys: unknown key 'n_keys'")
    assert "architecture table has it" in problem


def test_a_base_key_that_no_architecture_of_the_file_has_is_a_mistake(problems: Problems) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {preset: tiny, n_key: 32}
"""
    (problem,) = problems(
        """
        trials:
          - grid: {model.architecture: [plain, table]}
        """,
        header=header,
    )

    assert problem.startswith("5:23: model.n_key: unknown key 'n_key'")


def test_data_sources_may_be_compared_too(load: Load) -> None:
    sweep = load(
        """
        trials:
          - set: {data.seed: 1}
          - set: {data.source: files, data.path: sweep.yaml}
        """
    )

    assert [t.data["source"] for t in sweep.trials] == ["numbers", "files"]
    assert "n" not in sweep.trials[1].data
    (warning,) = sweep.warnings
    assert "data.n is left out where the source is files" in warning


def test_a_mistake_in_the_base_is_told_once(problems: Problems) -> None:
    found = problems(
        """
        trials:
          - grid: {model.preset: [tiny, small], train.beta1: [0.1, 0.2, 0.3], data.seed: [1, 2, 3]}
        seeds: [0, 1, 2]
        resources: {cpus: 0}
        """
    )

    assert len(found) == 1
    assert "resources.cpus: must be at least 1, got 0" in found[0]


def test_a_combination_says_how_many_trials_it_hits(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - grid: {train.batch_tokens: [64, 72], model.preset: [tiny, small]}
        """
    )

    assert "batch_tokens[1]: must be a multiple of seq_len (16), got 72" in problem
    assert "(in 2 of 4 trials, first trials[0].grid train.batch_tokens=72" in problem
    assert problem.endswith("change it or seq_len (line 4)")


def test_a_mistake_of_the_whole_sweep_names_no_trial(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - grid: {model.preset: [tiny, small]}
        retries: {failure: -1}
        """
    )

    assert "retries.failure: must be at least 0, got -1" in problem
    assert "trials" not in problem


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("uninstalled", r"'flux' is not installed \(\S+conftest.py:\d+\); look for a typo"),
        ("broken", r"architecture broken: \S+conftest.py:\d+: ValueError: mutable default"),
        ("without_presets", "architecture without_presets: its file has no PRESETS; "),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_line(
    load: Load, architecture: str, said: str
) -> None:
    with pytest.raises(ExperimentError, match=said):
        load(f"trials: [{{set: {{model.architecture: {architecture}}}}}]")


def test_a_base_value_that_every_entry_overrides_is_still_checked(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - set: {model.preset: small}
        """,
        header="""
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: plain, preset: tinny}
""",
    )

    assert "plain has no preset tinny; its presets are tiny, small, wide" in problem


def test_a_base_value_that_every_entry_overrides_breaks_no_rule_by_itself(
    problems: Problems, load: Load
) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: LR}
model: {architecture: plain, preset: tiny}
"""
    trials = "trials: [{set: {train.lr: 1.0e-3}}, {grid: {train.lr: [2.0e-3, 3.0e-3]}}]"
    # Each batch fits its own seq_len: what the base has is no mistake without the other.
    other = "trials: [{set: {train.batch_tokens: 64}}, {set: {train.batch_tokens: 128}}]"

    assert problems(trials, header=header.replace("LR", "-1.0e-2")) == [
        "4:57: train.lr: must be positive, got -0.01"
    ]
    assert load(trials, header=header.replace("LR", "1.0e-2")).trials
    odd = header.replace("LR", "1.0e-2").replace("batch_tokens: 64", "batch_tokens: 40")
    assert load(other, header=odd).trials


def test_values_of_a_broken_entry_are_checked_too(problems: Problems) -> None:
    found = problems(
        """
        trials:
          - set: {model.preset: small, trian.lr: 1.0e-3}
            grid: {train.beta1: [0.9, big]}
        """
    )

    assert [problem.split(";")[0] for problem in found] == [
        "8:32: trials[0].set.trian.lr: unknown key 'trian.lr'",
        "9:31: trials[0].grid.train.beta1[1]: must be a number, got big",
    ]


WITH_RECIPE = """
name: test
data: {source: numbers, n: 10}
train: {recipe: wide, tokens: 64_000}
model: {architecture: plain, preset: tiny}
"""


def test_a_recipe_fills_in_what_train_does_not_say(load: Load) -> None:
    (trial,) = load("", header=WITH_RECIPE.replace("}\nmodel", ", lr: 0.5}\nmodel")).trials

    assert trial.recipe == "wide"
    assert (trial.train["batch_tokens"], trial.train["schedule"]) == (1024, "linear")
    assert trial.train["lr"] == 0.5
    assert "recipe" not in trial.train


def test_the_same_fields_without_a_recipe_are_the_same_trial(load: Load) -> None:
    (with_recipe,) = load("", header=WITH_RECIPE).trials
    written = "tokens: 64_000, batch_tokens: 1024, seq_len: 16, lr: 1.0e-2, schedule: linear"
    (without,) = load(
        "", header=WITH_RECIPE.replace("recipe: wide, tokens: 64_000", written)
    ).trials

    assert without.recipe is None
    assert without.trial_id == with_recipe.trial_id


def test_recipes_may_be_compared_and_taken_back(load: Load) -> None:
    sweep = load(
        """
        trials:
          - grid: {train.recipe: [slow, wide]}
          - set: {train.recipe: null, train.batch_tokens: 32, train.seq_len: 8, train.lr: 0.1}
          - ladder: {architecture: plain, sizes: [tiny]}
        """,
        header=WITH_RECIPE.replace("tokens: 64_000", "tokens: 64_000, beta1: 0.5"),
    )

    assert [t.recipe for t in sweep.trials] == ["slow", "wide", None, "wide"]
    assert [t.train["lr"] for t in sweep.trials] == [1e-3, 1e-2, 0.1, 1e-2]
    assert {t.train["beta1"] for t in sweep.trials} == {0.5}


def test_an_unknown_recipe_is_one_mistake(problems: Problems) -> None:
    (problem,) = problems("", header=WITH_RECIPE.replace("wide", "widr"))
    assert problem == (
        "4:17: train.recipe: no recipe is called widr; did you mean 'wide'? there are slow, wide"
    )

    (problem,) = problems("trials: [{grid: {train.recipe: [slow, none]}}]", header=WITH_RECIPE)
    assert problem.startswith("6:39: trials[0].grid.train.recipe[1]: no recipe is called none")


def test_what_a_recipe_makes_impossible_names_it(problems: Problems) -> None:
    (problem,) = problems("", header=WITH_RECIPE.replace("64_000", "640"))

    assert problem == (
        "4:31: train.tokens: must be at least batch_tokens (1024), got 640; "
        "change it or batch_tokens (from the recipe)"
    )


def test_a_recipe_elsewhere_is_sent_home(problems: Problems) -> None:
    assert "write it under train:" in problems("recipe: slow")[0]
    assert (
        "write it with its section: train.recipe" in problems("trials: [{set: {recipe: slow}}]")[0]
    )


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("learning_rate", "did you mean 'lr'?"),
        ("epochs", "write tokens, the number of tokens in the whole run"),
        ("max_steps", "write tokens, the number of tokens in the whole run"),
        ("batch_size", "write batch_tokens, the number of tokens in an optimizer step"),
        ("warmup_steps", "write warmup_fraction, a share of the steps"),
        (
            "optimizer",
            "remove it: the optimizer is AdamW; table_optimizer is that of memory tables alone",
        ),
        ("seed", "write seeds: [0, 1, 2] at the top of the file"),
    ],
)
def test_the_usual_names_of_training_settings_lead_to_ours(
    problems: Problems, key: str, fix: str
) -> None:
    found = problems(f"trials: [{{set: {{train.{key}: 3}}}}]")

    assert [problem.partition("; ")[2] for problem in found] == [fix]


def test_a_usual_name_is_one_mistake_and_not_a_missing_key_too(problems: Problems) -> None:
    found = problems(
        "",
        header="""
name: test
data: {source: numbers, n: 10}
train: {epochs: 3, batch_size: 64, seq_len: 16, learning_rate: 1.0e-2}
model: {type: plain, hidden_size: 8, d_ff: 16}
""",
    )

    assert [problem.split(": ")[1] for problem in found] == [
        "train.epochs",
        "train.batch_size",
        "train.learning_rate",
        "model.type",
        "model.hidden_size",
    ]
    assert found[-2].endswith("did you mean 'architecture'?")
    assert found[-1].endswith("did you mean 'd_model'?")


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ("time_limit_s: 1h", "write 3_600 (seconds)"),
        ("time_limit_s: 30 minutes", "write 1_800 (seconds)"),
        ("hang_after_s: 1.5m", "write 90 (seconds)"),
        ("time_limit_s: soon", "write for example 3_600"),
    ],
)
def test_durations_are_written_in_seconds(problems: Problems, settings: str, fix: str) -> None:
    (at_the_top,) = problems(f"resources: {{{settings}}}")
    key, value = settings.split(": ")
    (in_a_grid,) = problems(f"trials: [{{grid: {{resources.{key}: [{value}]}}}}]")

    assert at_the_top.endswith(f"; {fix}")
    assert in_a_grid.endswith(f"; {fix}")


@pytest.mark.parametrize("written", ["two", "1.5", "{a: 1}", "yes"])
def test_what_is_no_list_of_seeds_is_answered_with_one(problems: Problems, written: str) -> None:
    (problem,) = problems(f"seeds: {written}")

    assert problem.endswith("; write for example [0, 1, 2]")


def test_a_key_without_its_section_hides_no_other_mistake(problems: Problems) -> None:
    found = problems(
        """
        trials:
          - grid: {model.presett: [tiny], train.lrr: [1.0e-2], nonsense: [1]}
          - grid: {model.architecture: [table], model.n_keys: [8], nonsense: [1], resources.cpu: [1]}
          - set: {architecture: table, model.n_keys: 8}
        """
    )

    assert [text.split(";")[0].partition(" ")[2] for text in found] == [
        "trials[0].grid.model.presett: unknown key 'presett'",
        "trials[0].grid.train.lrr: unknown key 'lrr'",
        "trials[0].grid.nonsense: unknown key 'nonsense'",
        "trials[1].grid.nonsense: unknown key 'nonsense'",
        "trials[1].grid.resources.cpu: unknown key 'cpu'",
        "trials[2].set.architecture: unknown key 'architecture'",
    ], "keys that another architecture has may be right"


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        # `wide` is a preset of plain alone; the base is a mixer.
        (
            "set: {model.preset: wide, bar: 2}, "
            "grid: {model.architecture: [plain], train.lr: [1.0e-3]}",
            ["set.bar: unknown key 'bar'"],
        ),
        (
            "set: {bar: 2}, "
            "grid: {model.preset: [wide], model.architecture: [plain], data.n: [8, 9]}",
            ["set.bar: unknown key 'bar'"],
        ),
        (
            "set: {model.preset: wide, bar: 2}, "
            "grid: {model.architecture: [plain, table], train.lr: [-1.0]}",
            [
                "set.model.preset: table has no preset wide",
                "set.bar: unknown key 'bar'",
                "grid.train.lr[0]: must be positive, got -1.0",
            ],
        ),
        (
            "set: {architecture: plain, model.preset: wide}",
            ["set.architecture: unknown key 'architecture'"],
        ),
        (
            "set: {model.preset: wide}, grid: {model.architecture: plain}",
            ["grid.model.architecture: must be a list, got plain"],
        ),
        (
            "set: {model.preset: wyde}, grid: {model.architecture: plain}",
            [
                "set.model.preset: no architecture has a preset wyde",
                "grid.model.architecture: must be a list, got plain",
            ],
        ),
    ],
)
def test_presets_of_a_broken_entry_are_tested_against_its_own_architectures(
    problems: Problems, entry: str, wrong: list[str]
) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: mixer, preset: tiny}
"""
    found = problems(f"trials: [{{{entry}}}]", header=header)

    assert [text.split(";")[0].partition("trials[0].")[2] for text in found] == wrong


def test_an_unknown_name_hides_no_key_and_preset_that_nobody_knows(problems: Problems) -> None:
    header = """
name: test
data: {source: number, n: 10, m: 1}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: plan, preset: tinny, n_keys: 8, n_layer: 2}
"""
    found = problems("", header=header)

    assert found == [
        "3:16: data.source: no data source is called number; did you mean 'numbers'?",
        "3:31: data.m: unknown key 'm'; there are source, path, extra, n, seed",
        "5:23: model.architecture: no architecture is called plan; did you mean 'plain'?",
        "5:37: model.preset: no architecture has a preset tinny; did you mean 'tiny'?",
        "5:55: model.n_layer: unknown key 'n_layer'; did you mean 'n_layers'?",
    ]


def test_a_broken_entry_without_an_architecture_is_searched_too(problems: Problems) -> None:
    header = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
"""
    found = problems(
        "trials: [{grid: {model.presett: [tiny], model.n_keys: [8], nonsense: [1]}}]", header=header
    )

    assert [text.split(";")[0].partition("grid.")[2] for text in found] == [
        "model.presett: unknown key 'presett'",
        "nonsense: unknown key 'nonsense'",
    ]

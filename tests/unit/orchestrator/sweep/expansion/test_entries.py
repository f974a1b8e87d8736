"""How the entries of `trials:` multiply out."""

from collections.abc import Callable

import pytest

from orchestrator.sweep.load import Sweep

Load = Callable[..., Sweep]
Problems = Callable[..., list[str]]


def test_a_file_without_trials_is_one_trial(load: Load) -> None:
    (trial,) = load("").trials

    assert trial.origin == "base, seed 0"
    assert (trial.preset, trial.seed) == ("tiny", 0)


def test_grid_is_a_product_whose_last_key_runs_fastest(load: Load) -> None:
    sweep = load(
        """
        trials:
          - grid: {model.preset: [tiny, small], train.lr: [1.0e-3, 2.0e-3, 3.0e-3]}
        """
    )

    assert [(t.preset, t.train["lr"]) for t in sweep.trials] == [
        (preset, lr) for preset in ("tiny", "small") for lr in (1e-3, 2e-3, 3e-3)
    ]
    assert sweep.trials[1].origin == "trials[0].grid model.preset=tiny train.lr=2.0e-3, seed 0"


def test_zip_walks_its_lists_together(load: Load) -> None:
    sweep = load(
        """
        trials:
          - zip: {model.preset: [tiny, small], train.lr: [1.0e-3, 2.0e-3]}
        """
    )

    assert [(t.preset, t.train["lr"]) for t in sweep.trials] == [("tiny", 1e-3), ("small", 2e-3)]
    assert sweep.trials[1].origin == "trials[0].zip model.preset=small train.lr=2.0e-3, seed 0"


def test_grid_zip_and_list_of_one_entry_multiply(load: Load) -> None:
    sweep = load(
        """
        trials:
          - set: {data.n: 20}
            grid: {model.preset: [tiny, small]}
            zip: {train.lr: [1.0e-3, 2.0e-3], train.beta1: [0.8, 0.9]}
            list: [{model.dropout: 0.1}, {train.weight_decay: 0.2}]
        """
    )

    assert len(sweep.trials) == 8
    assert all(t.data["n"] == 20 for t in sweep.trials)
    assert [t.model["dropout"] for t in sweep.trials] == [0.1, 0.0] * 4
    assert [t.preset for t in sweep.trials] == ["tiny"] * 4 + ["small"] * 4
    assert sweep.trials[0].origin == (
        "trials[0].grid model.preset=tiny, zip train.lr=1.0e-3 train.beta1=0.8, "
        "list model.dropout=0.1, seed 0"
    )


def test_every_trial_is_run_with_every_seed(load: Load) -> None:
    sweep = load(
        """
        seeds: [3, 1]
        trials:
          - grid: {model.preset: [tiny, small]}
        """
    )

    assert [(t.preset, t.seed) for t in sweep.trials] == [
        ("tiny", 3),
        ("tiny", 1),
        ("small", 3),
        ("small", 1),
    ]


def test_a_value_may_be_a_list_in_set_and_a_list_of_lists_in_grid(load: Load) -> None:
    sweep = load(
        """
        trials:
          - set: {model.skip: [0, 1]}
          - grid: {model.skip: [[0], [1]]}
        """
    )

    assert [t.model["skip"] for t in sweep.trials] == [[0, 1], [0], [1]]


def test_resources_may_differ_between_trials(load: Load) -> None:
    sweep = load(
        """
        resources: {cpus: 2}
        trials:
          - list: [{model.preset: tiny}, {model.preset: small, resources.gpus: 1}]
        """
    )

    assert [(t.resources.cpus, t.resources.gpus) for t in sweep.trials] == [(2, "auto"), (2, 1.0)]


def test_trials_that_differ_in_resources_alone_are_duplicates(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - grid: {resources.cpus: [1, 2]}
        """
    )

    assert (
        "trials[0].grid resources.cpus=2 is the same trial as trials[0].grid resources.cpus=1"
        in problem
    )


def test_the_number_of_trials_is_known_before_they_are_made(problems: Problems) -> None:
    axes = ", ".join(
        f"train.{key}: [{', '.join(f'0.{i:03}' for i in range(1, 500))}]"
        for key in ("lr", "beta1", "beta2", "weight_decay", "eps", "warmup_fraction")
    )
    (problem,) = problems(f"trials:\n  - grid: {{{axes}}}\n")

    assert f"{499**6:,} trials" in problem
    assert "the limit is 100,000" in problem


def test_a_key_may_be_written_once_per_entry(problems: Problems) -> None:
    (problem,) = problems(
        """
        trials:
          - grid: {train.lr: [1.0e-3]}
            zip: {train.lr: [2.0e-3]}
        """
    )

    assert "train.lr is set twice in this entry, first at line 8" in problem


def test_an_empty_entry_is_the_base_itself(load: Load) -> None:
    (alone,) = load("").trials
    sweep = load(
        """
        trials:
          - {}
          - set: {model.architecture: table}
            match: {training_flops: plain}
        """
    )

    assert sweep.trials[0].trial_id == alone.trial_id
    assert [t.model["architecture"] for t in sweep.trials] == ["plain", "table"]


def test_a_value_that_a_grid_repeats_is_named(problems: Problems) -> None:
    """Once per value, and not once per trial that it makes twice."""
    assert problems(
        """
        trials:
          - grid: {model.preset: [tiny, tiny, small], train.lr: [5.0e-3, 0.005]}
        """
    ) == [
        "8:33: trials[0].grid.model.preset[1]: tiny is written twice in this list; keep one of them",
        "8:66: trials[0].grid.train.lr[1]: 0.005 is in this list already, as 5.0e-3; keep one of them",
    ]


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("list: [{model.preset: small}, {model.preset: small}]", "list model.preset=small"),
        ("zip: {model.preset: [small, small]}", "zip model.preset=small"),
        ("ladder: {architectures: [plain, plain], sizes: [small]}", "ladder plain small"),
        (
            "isoflop: {budgets_flops: [1.0e+9], architectures: [plain, plain], sizes: 3}",
            "isoflop plain, 1e+09 FLOPs, size 1 of 3",
        ),
    ],
)
def test_a_trial_that_an_entry_writes_twice_is_not_compared_with_itself(
    problems: Problems, entry: str, what: str
) -> None:
    (problem,) = problems(f"trials: [{{{entry}}}]")

    assert f"trials[0].{what} is there twice" in problem
    assert problem.endswith("; remove one of them")


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("lr", "write it with its section: train.lr"),
        ("learning_rate", "write it with its section: train.lr"),
        ("num_layers", "write it with its section: model.n_layers"),
    ],
)
def test_a_key_without_its_section_is_sent_there(problems: Problems, key: str, fix: str) -> None:
    (problem,) = problems(f"trials: [{{grid: {{{key}: [1, 2]}}}}]")

    assert problem.endswith(f"unknown key {key!r}; {fix}")

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.varied_settings import setting_label, setting_text, varied_settings


def trial(preset="d8", architecture="dense", **settings):
    """A trial with settings `train__lr=…`, written with two underscores for the dot."""
    return architecture, preset, {k.replace("__", "."): v for k, v in settings.items()}


def test_learning_rates_of_one_preset_are_named():
    trials = [trial(train__lr=lr, train__steps=100) for lr in (1e-3, 3e-3, 1e-2)]

    assert varied_settings(trials) == ("train.lr",)
    assert [setting_label(t[2], ("train.lr",)) for t in trials] == ["lr=1e-3", "lr=3e-3", "lr=1e-2"]


def test_two_grids_are_named_in_one_order():
    trials = [
        trial(p, "memory_plus", train__lr=lr, model__n_keys=n)
        for p in ("d8", "d16")
        for lr in (1e-3, 3e-3)
        for n in (16, 64)
    ]

    names = varied_settings(trials)

    assert setting_label(trials[1][2], names) == "n_keys=64 · lr=1e-3"


def test_what_a_preset_or_an_architecture_brings_is_not_named():
    trials = [
        trial("d8", model__d_model=8, train__lr=1e-2),
        trial("d16", model__d_model=16, train__lr=3e-3),
        trial("d8", "moe", model__d_model=8, model__n_experts=4, train__lr=1e-2),
    ]

    assert varied_settings(trials) == ()


def test_sizes_without_presets_are_no_settings():
    ladder = [trial(None, model__d_model=d, train__tokens=100 * d) for d in (8, 16, 32)]
    tuned = [trial(None, model__d_model=d, train__lr=lr) for d in (8, 16) for lr in (1e-3, 1e-2)]

    assert varied_settings(ladder) == ()
    assert varied_settings(tuned) == ("train.lr",)


def test_what_follows_from_another_setting_is_not_named_too():
    matched = [trial(model__n_keys=n, model__d_ff=500 - n) for n in (16, 64)]
    longer = [
        trial(train__tokens=t, train__steps=t // 10, train__warmup=t // 100) for t in (1e3, 1e4)
    ]

    assert varied_settings(matched) == ("model.n_keys",)
    assert varied_settings(longer) == ("train.tokens",)


def test_a_rate_chosen_for_a_model_does_not_hide_how_the_models_differ():
    tuned = [
        trial(train__lr=2e-3),
        trial(train__lr=1e-3, model__output_init="depth_scaled"),
        trial(train__lr=1e-3, model__output_init="depth_scaled", model__d_ff=2648),
    ]

    names = varied_settings(tuned)

    assert [setting_label(t[2], names) for t in tuned[:2]] == [
        "lr=2e-3",
        "output_init=depth_scaled · lr=1e-3",
    ]


def test_length_and_batch_are_named_beside_the_rate_that_goes_with_them():
    longer = [
        trial(train__lr=lr, train__tokens=t, train__steps=t // 10)
        for lr, t in ((2e-2, 40_000), (1e-2, 160_000))
    ]
    batches = [trial(train__lr=lr, train__batch_tokens=b) for lr, b in ((1e-2, 512), (2e-2, 2048))]

    assert varied_settings(longer) == ("train.lr", "train.tokens")
    assert varied_settings(batches) == ("train.batch_tokens", "train.lr")


def test_tokens_that_match_solved_for_are_not_named():
    solved = {"match__training_flops": "dense", "match__solve": "tokens"}
    trials = [trial(train__tokens=1e6), trial(train__tokens=3e6, **solved)]

    assert varied_settings(trials) == ("match.training_flops",)


def test_other_data_are_named_even_at_another_size():
    trials = [trial("d8", data__n_people=100), trial("d16", data__n_people=200)]

    assert varied_settings(trials) == ("data.n_people",)


def test_seeds_of_one_configuration_vary_nothing():
    assert varied_settings([trial(train__lr=1e-3)] * 3) == ()


def test_a_setting_that_some_lack_is_named_where_it_is():
    trials = [trial(model__knn=8), trial(model__knn=None), trial()]

    assert varied_settings(trials) == ("model.knn",)
    assert [setting_label(t[2], ("model.knn",)) for t in trials] == ["knn=8", "", ""]


def test_ends_that_are_alike_keep_their_section():
    names = ("train.lr", "model.lr")

    assert setting_label({"train.lr": 0.5, "model.lr": 2}, names) == "train.lr=0.5 · model.lr=2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-3, "3e-3"), (0.01, "1e-2"), (0.5, "0.5"), (64, "64"), (2000, "2000"), (1_000_000, "1e6"), (262_144, "262144"), (True, "on"), ("adam", "adam"), (0, "0"), (-0.002, "-2e-3")],
)  # fmt: skip
def test_values_are_short(value, text):
    assert setting_text(value) == text


def test_integers_of_a_table_are_written_like_any_others():
    assert setting_text(np.int64(100_000)) == "1e5"


@given(st.floats(1e-12, 1e12))
def test_a_short_number_is_the_number(value):
    assert float(setting_text(value)) == pytest.approx(value, rel=1e-11)


@given(
    st.lists(
        st.tuples(st.sampled_from([1e-3, 3e-3]), st.sampled_from([16, 64]), st.integers(0, 2)),
        min_size=1,
    )
)
def test_labels_tell_apart_what_differs(cells):
    trials = [trial(train__lr=lr, model__n_keys=n, data__n_people=p) for lr, n, p in cells]

    names = varied_settings(trials)

    labels = {setting_label(settings, names) for _, _, settings in trials}
    assert len(labels) == len(set(cells))

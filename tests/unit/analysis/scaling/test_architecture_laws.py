import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq, minimize_scalar, nnls

import analysis
from analysis.fitting.objective import SQUARES
from analysis.laws.power import POWER
from analysis.laws.registry import law_named
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.compute_multiplier import multipliers
from analysis.scaling.cost_measures import (
    COST_MEASURES,
    cost_at,
    cost_measure,
    cost_terms,
    fit_cost,
)

FAST = {"objective": SQUARES, "n_draws": 20, "hold_out": False}


def test_costs_are_those_of_the_runs_and_grow_beyond_them():
    N = np.geomspace(1e6, 1e8, 8)
    flops = 6 * N + 900 * np.sqrt(N)

    fitted = fit_cost(N, 0 * N, flops, np.ones((1, 8)))

    far = np.asarray([1e5, 1e9])
    assert cost_at(fitted[0], far, 0 * far) == pytest.approx(6 * far + 900 * np.sqrt(far), rel=1e-6)


def test_the_price_of_a_memory_is_told_from_that_of_parameters():
    N, M = (v.ravel() for v in np.meshgrid(np.geomspace(1e6, 1e8, 4), np.geomspace(1e7, 1e9, 4)))

    fitted = fit_cost(N, M, 2 * N + 0.5 * np.sqrt(M), np.ones((1, 16)))[0]

    assert fitted[[2, 3]] == pytest.approx([2, 0.5], rel=1e-6)
    assert fitted[4] == pytest.approx(0, abs=1e-9)


def test_noisy_costs_are_those_of_scipys_nnls():
    generator = np.random.default_rng(0)
    N = np.geomspace(1e4, 1e6, 8)
    M = N * generator.uniform(2, 8, 8)
    amount = (2 * N + 0.5 * np.sqrt(M)) * np.exp(0.1 * generator.standard_normal(8))
    weights = generator.multinomial(8, np.full(8, 1 / 8), size=20).astype(float)

    fitted = fit_cost(N, M, amount, weights)

    relative = cost_terms(N, M) / amount
    expected = [nnls((relative * w).T, w)[0] @ relative for w in np.sqrt(weights)]
    np.testing.assert_allclose(fitted @ relative, expected, rtol=1e-6)


def test_a_constant_cost_does_not_grow():
    N = np.geomspace(1e4, 1e6, 6)

    (fitted,) = fit_cost(N, 4 * N, np.full(6, 12.5), np.ones((1, 6)))

    assert fitted.tolist() == [pytest.approx(12.5), 0, 0, 0, 0]


def test_each_architecture_has_its_own_law_and_prices(exact_families):
    dense, memory = (exact_families.named(n) for n in ("dense", "memory"))

    assert memory.fit.parameters["A"] == pytest.approx(330, rel=1e-3)
    assert dense.fit.parameters["A"] == pytest.approx(482.01, rel=1e-3)
    N = np.asarray([3e7])
    ratio = memory.curve.price(COST_MEASURES["seconds"], N, 8 * N) / dense.curve.price(
        COST_MEASURES["seconds"], N, 0 * N
    )
    assert ratio == pytest.approx([1.4])
    assert memory.curve.memory_at(N, 0.0) == pytest.approx(8 * N)


def test_shared_coefficients_are_one_number(two_architectures):
    runs = two_architectures(noise=0.004)

    families = fit_families(runs, shared=("B", "E", "beta"), **FAST)

    dense, memory = families.curves()["dense"], families.curves()["memory"]
    names = list(dense.law.parameter_names)
    same = [n for i, n in enumerate(names) if dense.parameters[0, i] == memory.parameters[0, i]]
    assert same == ["B", "E", "beta"]
    assert len(families.fits) == 1
    assert families.drawn()["memory"].parameters.shape == (20, 5)


def test_the_table_has_each_architecture_with_its_coefficients(two_architectures):
    families = fit_families(two_architectures(), shared=("B", "E", "beta"), **FAST)

    frame = families.to_frame()

    (fit,) = families.fits
    assert frame.loc[("memory", "A"), "value"] == fit.parameters["A[memory]"]
    assert frame.loc[("dense", "B")].tolist() == frame.loc[("memory", "B")].tolist()
    assert families.summary().startswith(f"dense, memory\n{fit.summary()}")


def test_a_law_of_memory_is_one_for_all_architectures(two_architectures):
    runs = two_architectures(noise=0.004)

    families = fit_families(runs, law=law_named("sparse_effective"), **FAST)

    assert len(families.fits) == 1
    assert list(families.named("dense").curve.domain.ratios) == [0.0]
    assert families.named("memory").curve.domain.ratios == pytest.approx([8.0])


def test_seeds_of_a_configuration_are_drawn_together(two_architectures):
    runs = two_architectures(noise=0.004)

    once = fit_families(runs, **FAST)
    twice = fit_families(pd.concat([runs, runs], ignore_index=True), **FAST)

    assert twice.named("memory").fit.draws == pytest.approx(
        once.named("memory").fit.draws, rel=1e-3
    )


def test_another_architecture_changes_no_draw(two_architectures):
    runs = two_architectures(noise=0.004)

    both = fit_families(runs, **FAST)
    alone = fit_families(runs[runs.architecture == "memory"], **FAST)

    assert np.array_equal(both.named("memory").fit.draws, alone.named("memory").fit.draws)


def test_row_order_means_nothing(two_architectures):
    runs = two_architectures(noise=0.004)

    straight = fit_families(runs, **FAST)
    shuffled = fit_families(runs.sample(frac=1, random_state=0), **FAST)

    assert shuffled.named("dense").fit.draws == pytest.approx(straight.named("dense").fit.draws)


def test_a_law_of_one_size_needs_no_tokens(two_architectures):
    runs = two_architectures().query("tokens == 20 * params")

    families = fit_families(runs, law=POWER, **FAST)

    assert not families.named("dense").curve.has_tokens
    assert families.columns == {"x": "total_params"}


def test_one_architecture_too_small_to_fit_is_left_out_with_its_reason(two_architectures):
    runs = two_architectures()
    few = pd.concat([runs[runs.architecture == "dense"], runs[runs.architecture == "memory"][:4]])

    families = fit_families(few, **FAST)

    assert list(families.by_name) == ["dense"]
    assert "4 distinct runs for 5 parameters" in families.left_out["memory"]
    with pytest.raises(ValueError, match="memory: its law is underdetermined"):
        families.named("memory")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "loss"}, "loss: no such column"),
        ({"loss": -1.0}, "loss, row 5: must be positive"),
        ({"tokens": np.nan}, "tokens, row 5: must be positive"),
        ({"shared": ("gamma",)}, "shared: must name parameters of chinchilla"),
        ({"law": law_named("fine_grained")}, "law: fine_grained needs granularity"),
    ],
)
def test_what_cannot_be_is_said_with_its_row(two_architectures, change, message):
    runs = two_architectures()
    options = {k: v for k, v in change.items() if k in ("shared", "law")}
    for column in set(change) - set(options):
        if column == "drop":
            runs = runs.drop(columns=change[column])
        else:
            runs.loc[5, column] = change[column]

    with pytest.raises(ValueError, match=message):
        fit_families(runs, **FAST, **options)


def test_a_missing_measure_is_named_where_it_is_asked_for(two_architectures):
    runs = two_architectures().drop(columns=["train_seconds", "training_flops"])

    families = fit_families(runs, **FAST)

    with pytest.raises(
        ValueError,
        match="measured training seconds of dense: the table has no column train_seconds",
    ):
        families.require_cost(cost_measure("seconds"), ["dense"])
    assert "6 N D" in families.notes[0]
    with pytest.raises(ValueError, match="no 'joules'; there are flops"):
        cost_measure("joules")


def test_a_curve_has_one_price_unless_it_was_measured_with_noise(two_architectures):
    runs = two_architectures(noise=0.004)
    runs["train_seconds"] *= np.exp(0.05 * np.random.default_rng(0).standard_normal(len(runs)))

    drawn = fit_families(runs, **FAST).drawn()["memory"]

    assert drawn.one_price(COST_MEASURES["flops"])
    assert not drawn.one_price(COST_MEASURES["seconds"])
    assert dataclasses.replace(drawn.row(3)).k == 1


def test_what_is_odd_about_an_architecture_names_the_rows_of_the_whole_table(two_architectures):
    runs = two_architectures(noise=0.002)
    odd = int(runs.index[runs.architecture == "memory"][-1])
    runs.loc[odd, "loss"] = 40.0

    families = fit_families(runs, n_draws=0, hold_out=False)

    assert odd > 20
    assert f"row {odd}: 40 is far above" in families.named("memory").fit.sentence
    assert families.named("dense").fit.warnings == ()


def test_rows_are_called_as_in_the_file_that_was_loaded(two_architectures):
    runs = two_architectures(noise=0.002)
    runs.loc[0, "loss"] = np.nan
    runs["loss"] = runs["loss"].astype(object)
    loaded = analysis.load(runs)
    last = int(loaded.table["row"].iloc[-1])
    assert last != len(loaded.table) - 1
    loaded.table.loc[loaded.table.index[-1], "tokens"] = -1.0

    with pytest.raises(ValueError, match=rf"tokens, row {last}: must be positive"):
        fit_families(loaded.table, n_draws=0)


def test_text_among_numbers_is_named_by_its_row(two_architectures):
    runs = two_architectures().astype({"tokens": object})
    runs.loc[3, "tokens"] = "many"

    with pytest.raises(ValueError, match=r"tokens, row 3: not a number, got 'many'"):
        fit_families(runs, n_draws=0)


ROUTED = law_named("routed_joint")


def routed_runs(counts=(1, 4, 16, 64)):
    """Runs of the published joint law, without noise: an architecture for each number of experts."""
    cells = [(e, n, 20 * n * r) for e in counts for n in np.geomspace(3e7, 1e9, 4) for r in (1, 4)]
    experts, size, tokens = np.asarray(cells).T
    inputs = {"n_active": size, "tokens": tokens, "experts": experts}
    coefficients = np.asarray([ROUTED.example[name] for name in ROUTED.parameter_names])
    return pd.DataFrame(
        {
            "architecture": [f"moe {e:g}" if e > 1 else "dense" for e in experts],
            "active_params": size,
            "tokens": tokens,
            "experts": experts,
            "loss": ROUTED.evaluate(inputs, coefficients),
        }
    )


def test_a_law_of_experts_gives_the_multipliers_of_a_plain_search():
    coefficients = np.asarray([ROUTED.example[name] for name in ROUTED.parameter_names])

    def best_loss(flops, experts):
        def loss(log_n):
            inputs = {"n_active": np.exp([log_n]), "tokens": flops / 6 / np.exp([log_n])}
            return ROUTED.evaluate({**inputs, "experts": np.asarray([experts])}, coefficients)[0]

        return minimize_scalar(loss, bounds=(10, 30), method="bounded").fun

    wanted = best_loss(1e19, 16.0)
    oracle = brentq(
        lambda log_c: best_loss(np.exp(log_c), 1.0) - wanted, np.log(1e18), np.log(1e21)
    )

    laws = fit_families(routed_runs(), law="routed_joint", n_draws=0, hold_out=False)

    found = multipliers(laws, "moe 16", amounts=1e19).multiplier[0]
    assert found == pytest.approx(np.exp(oracle) / 1e19, rel=0.01)


def test_an_architecture_of_several_numbers_of_experts_is_refused():
    runs = routed_runs()
    runs["architecture"] = np.where(runs["experts"] > 1, "moe", "dense")

    with pytest.raises(ValueError, match="experts: moe has 4 to 64; make each count"):
        fit_families(runs, law="routed_joint", n_draws=0, hold_out=False)

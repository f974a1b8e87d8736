import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar

from analysis.fitting.objective import SQUARES
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.laws.chinchilla import compute_optimum
from analysis.laws.registry import law_named
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.cost_measures import COST_MEASURES
from analysis.scaling.frontier import allocate, band, frontier


@pytest.mark.parametrize("budget", [1e15, 3e17, 1e20])
def test_the_best_size_is_that_of_the_closed_form(exact_families, budget):
    family = exact_families.named("dense")

    found = allocate(family.curve, COST_MEASURES["flops"], np.asarray([budget]))

    params, tokens = compute_optimum(dict(family.fit.parameters), budget)
    assert found.params[0, 0] == pytest.approx(params, rel=2e-4)
    assert found.tokens[0, 0] == pytest.approx(tokens, rel=2e-4)
    loss = family.curve.loss(np.asarray([params]), np.zeros(1), np.asarray([tokens]))
    assert found.loss[0] == pytest.approx(loss[0], rel=1e-7)


def test_with_an_output_head_the_best_size_is_that_of_a_plain_search(two_architectures):
    runs = two_architectures()
    runs["training_flops"] = 6 * (runs.params + 3000 * np.sqrt(runs.params)) * runs.tokens
    families = fit_families(runs, objective=SQUARES, n_draws=0, hold_out=False)
    curve = families.curves()["dense"]

    found = allocate(curve, COST_MEASURES["flops"], np.asarray([1e17]))

    def loss(log_N):
        N = np.exp([log_N])
        return float(curve.loss(N, 0 * N, 1e17 / 6 / (N + 3000 * np.sqrt(N)))[0, 0])

    plain = minimize_scalar(loss, bounds=(np.log(1e5), np.log(1e9)), method="bounded", options={"xatol": 1e-9})  # fmt: skip
    assert found.params[0, 0] == pytest.approx(np.exp(plain.x), rel=1e-3)
    assert found.loss[0, 0] == pytest.approx(plain.fun, rel=1e-7)


def test_at_given_tokens_the_size_is_what_the_amount_pays_for(exact_families):
    curve = exact_families.curves()["memory"]

    by_flops = allocate(curve, COST_MEASURES["flops"], np.asarray([6e16]), tokens=1e9)
    by_bytes = allocate(curve, COST_MEASURES["bytes_moved"], np.asarray([3e6]), tokens=1e9)

    assert by_flops.params[0, 0] == pytest.approx(1e7)
    assert by_bytes.params[0, 0] == pytest.approx(1e6)
    assert by_bytes.memory[0, 0] == pytest.approx(8e6)


def test_bytes_say_nothing_of_tokens(exact_families):
    with pytest.raises(ValueError, match="tokens: stored bytes do not depend on them"):
        frontier(exact_families, measure="stored_bytes")


def test_the_winner_and_its_share_of_the_draws(noisy_families, exact_families):
    found = frontier(noisy_families, budgets=[1e16, 1e17])

    shares = np.asarray([c.share for c in found.allocations.values()])
    assert shares.sum(axis=0) == pytest.approx([1, 1])
    assert found.best == ["memory", "memory"]
    assert found.allocations["memory"].share == pytest.approx([1, 1])
    # Of tables of noise one in thirty is called a misfit, and this is one.
    fits = {name: exact_families.named(name).fit for name in found.allocations}
    sentence = dataclasses.replace(found, fits=fits).sentence(0)
    assert sentence.startswith("1e+16 training FLOPs: memory with")
    assert "of memory" in sentence
    assert "best in 100% of draws (dense 0%)" in sentence
    low, high = found.allocations["memory"].params_band
    assert (low < found.allocations["memory"].params).all()
    assert (found.allocations["memory"].params < high).all()
    assert len(found.to_frame()) == 4


def test_architectures_that_are_the_same_win_as_often(two_architectures):
    runs = two_architectures(noise=0.004, seeds=1).query("architecture == 'dense'")
    twins = [runs.assign(architecture=name) for name in ("one", "two")]
    # The second is the same architecture with other noise.
    again = two_architectures(noise=0.004, seed=5).query("architecture == 'dense'")
    twins[1] = twins[1].assign(loss=again.loss.to_numpy())
    families = fit_families(pd.concat(twins), objective=SQUARES, n_draws=100, hold_out=False)

    share = frontier(families, budgets=[1e17]).allocations["one"].share[0]
    assert 0.02 < share < 0.98


def test_nobody_wins_a_draw_in_which_none_has_a_best_size(noisy_families):
    family = noisy_families.named("dense")
    draws = family.fit.draws.copy()
    draws[:25, family.fit.law.parameter_names.index("A")] = 0  # size does nothing in 25 draws
    flat = dataclasses.replace(family, fit=dataclasses.replace(family.fit, draws=draws))
    twins = dataclasses.replace(noisy_families, by_name={"dense": flat, "twin": flat})

    found = frontier(twins, budgets=[1e17])

    share = 1 - 25 / len(draws)
    assert found.allocations["dense"].share == pytest.approx([share])
    assert found.to_frame()["share_of_draws"].tolist() == pytest.approx([share, 0])
    told = f"best in {share:.0%} of draws (twin 0%), no best size in {1 - share:.0%}"
    assert told in found.sentence(0)


def test_one_architecture_has_sizes_but_wins_nothing(noisy_families):
    why = "its law is underdetermined: tokens is the same in all runs"
    alone = dataclasses.replace(
        noisy_families,
        by_name={"dense": noisy_families.named("dense")},
        left_out={"memory": why},
    )

    found = frontier(alone, budgets=[1e17])

    assert np.isnan(found.allocations["dense"].share).all()
    frame = found.to_frame()
    assert frame["share_of_draws"].isna().all()
    assert not frame["best"].any()
    assert found.sentence(0).startswith("1e+17 training FLOPs: dense with ")
    assert "best" not in found.sentence(0)
    assert found.sentence(0).endswith(f"; without memory: {why}")


def test_no_architecture_wins_where_none_has_a_best_size(noisy_families):
    found = frontier(noisy_families, budgets=[1e40])

    assert found.best == [""]
    assert [c.share[0] for c in found.allocations.values()] == [0, 0]


def test_a_frontier_far_out_is_marked(exact_families):
    found = frontier(exact_families, budgets=[1e17, 1e24])

    beyond = found.allocations["memory"].beyond
    assert beyond[0] == 1
    assert beyond[1] > 100
    assert "extrapolated" in found.sentence(1)
    assert "best in" not in found.sentence(1)  # without draws no share


def test_a_law_without_an_optimum_gives_no_size(exact_families):
    family = exact_families.named("dense")
    parameters = family.curve.parameters.copy()
    parameters[0, family.curve.law.parameter_names.index("A")] = 0  # size does nothing
    flat = dataclasses.replace(family, curve=dataclasses.replace(family.curve, parameters=parameters))  # fmt: skip

    found = frontier(dataclasses.replace(exact_families, by_name={"dense": flat}), budgets=[1e16])

    assert found.best == [""]
    assert np.isnan(found.allocations["dense"].params[0])
    assert "no architecture has a best size" in found.sentence(0)


def test_memory_is_chosen_among_what_was_built(two_architectures):
    law = law_named("sparse_effective")
    truth = np.asarray([law.example[n] for n in law.parameter_names])
    frames = []
    base = two_architectures().query("architecture == 'dense'")
    for ratio in (0.0, 2.0, 8.0, 32.0):
        frame = base.assign(
            architecture="memory" if ratio else "dense", memory_params=ratio * base.params
        )
        frame["training_flops"] = (
            6 * (frame.params + 20 * np.sqrt(frame.memory_params)) * frame.tokens
        )
        inputs = {"n_active": frame.params.to_numpy(), "n_memory": frame.memory_params.to_numpy(), "tokens": frame.tokens.to_numpy()}  # fmt: skip
        frame["loss"] = law.evaluate(inputs, truth)
        frames.append(frame)
    runs = pd.concat(frames, ignore_index=True)
    families = fit_families(runs, law=law, objective=SQUARES, n_draws=0, hold_out=False)
    curve = families.curves()["memory"]

    found = allocate(curve, COST_MEASURES["flops"], np.asarray([1e17]))

    ratio = found.memory[0, 0] / found.params[0, 0]
    assert ratio == pytest.approx(32, rel=1e-6)
    less = dataclasses.replace(curve, domain=dataclasses.replace(curve.domain, ratios=np.asarray([8.0])))  # fmt: skip
    assert found.loss[0, 0] < allocate(less, COST_MEASURES["flops"], np.asarray([1e17])).loss[0, 0]


def test_a_band_keeps_an_infinite_end():
    draws = np.asarray([[1.0], [2.0], [np.nan], [np.inf]])

    low, high = band(draws, 0.5)

    assert low[0] == 1.0
    assert np.isinf(high[0])
    assert np.isnan(band(np.empty((0, 1)), 0.95)[0][0])


@pytest.mark.parametrize("budgets", [[0.0], [-1.0], [np.nan]])
def test_impossible_budgets_are_refused(exact_families, budgets):
    with pytest.raises(ValueError, match="budgets: must be positive"):
        frontier(exact_families, budgets=budgets)


@pytest.mark.parametrize("status", [VerdictStatus.MISFIT, VerdictStatus.UNDERDETERMINED])
def test_laws_that_are_not_credible_have_no_answer(exact_families, status):
    found = frontier(exact_families, budgets=[1e17])
    wrong = FitVerdict(status=status, sentence="residuals follow the size")
    fits = {"memory": SimpleNamespace(verdict=wrong), "dense": exact_families.named("dense").fit}

    sentence = dataclasses.replace(found, fits=fits).sentence(0)

    assert found.verdict.is_credible
    assert f"no size is to be relied on, {status}: memory: residuals follow the size" in sentence

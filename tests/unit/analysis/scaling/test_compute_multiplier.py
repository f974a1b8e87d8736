import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

import analysis
from analysis.fitting.objective import SQUARES
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.laws.chinchilla import CHINCHILLA
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.compute_multiplier import multipliers
from analysis.scaling.cost_measures import COST_MEASURES
from analysis.scaling.frontier import allocate

WORTH = (482.01 / 330.0) ** (1 / 0.3478)
"""Dense parameters that one of memory's stands for, at any size and tokens, by the laws of conftest."""


def families_of(laws, two_architectures):
    return fit_families(two_architectures(laws=laws), objective=SQUARES, n_draws=0, hold_out=False)


@pytest.mark.parametrize("tokens", [1e8, 1e10])
def test_at_equal_tokens_a_parameter_is_worth_what_the_laws_say(exact_families, tokens):
    active = multipliers(exact_families, "memory", measure="active_params", tokens=tokens)
    stored = multipliers(exact_families, "memory", measure="stored_bytes", tokens=tokens)

    assert active.multiplier == pytest.approx(WORTH, rel=2e-3)
    assert stored.multiplier == pytest.approx(WORTH / 9, rel=2e-3)
    assert not active.refusals


def test_as_a_curve_in_tokens(exact_families):
    curve = multipliers(exact_families, "memory", measure="active_params", amounts=1e7, tokens=np.geomspace(1e8, 1e10, 5))  # fmt: skip

    assert curve.multiplier == pytest.approx(WORTH, rel=2e-3)
    assert list(curve.tokens) == pytest.approx(list(np.geomspace(1e8, 1e10, 5)))


@pytest.mark.parametrize("measure", ["flops", "seconds"])
def test_along_a_budget_it_is_what_a_plain_root_search_finds(exact_families, measure):
    amounts = np.asarray([1e15, 1e17, 1e18]) * (1.0 if measure == "flops" else 1e-14)
    curves, held = exact_families.curves(), COST_MEASURES[measure]

    found = multipliers(exact_families, "memory", measure=measure, amounts=amounts)

    def best(name, amount):
        return allocate(curves[name], held, np.asarray([amount]))

    for i, amount in enumerate(amounts):
        loss = best("memory", amount).loss[0, 0]
        root = np.exp(brentq(lambda x, loss=loss: best("dense", np.exp(x)).loss[0, 0] - loss, np.log(amount / 30), np.log(amount * 30)))  # fmt: skip
        assert found.multiplier[i] == pytest.approx(root / amount, rel=5e-4)
        size = best("dense", root).params[0, 0] / best("dense", amount).params[0, 0]
        assert found.size[i] == pytest.approx(size, rel=1e-3)


def test_it_is_the_inverse_the_other_way_round(exact_families):
    there = multipliers(exact_families, "memory", amounts=[1e17])

    back = multipliers(exact_families, "dense", reference="memory", amounts=1e17 * there.multiplier)  # fmt: skip

    assert back.multiplier == pytest.approx(1 / there.multiplier, rel=5e-4)


def test_units_do_not_matter(exact_families, two_architectures):
    runs = two_architectures()
    runs["training_flops"] /= 1e15
    scaled = fit_families(runs, objective=SQUARES, n_draws=0, hold_out=False)

    a = multipliers(exact_families, "memory", amounts=[1e16, 1e17]).multiplier
    b = multipliers(scaled, "memory", amounts=[10, 100]).multiplier

    assert a == pytest.approx(b, rel=1e-4)


def test_a_loss_that_the_reference_never_has_is_refused_in_a_sentence(two_architectures):
    dense = {"A": 482.01, "B": 2085.43, "E": 2.4, "alpha": 0.3478, "beta": 0.3658}
    families = families_of({"dense": dense, "memory": dense | {"E": 1.8}}, two_architectures)

    found = multipliers(families, "memory", amounts=[1e15, 1e22])

    assert np.isfinite(found.multiplier[0])
    assert np.isnan(found.multiplier[1])
    assert np.isnan(found.low[1])
    assert list(found.refusals) == [1]
    assert "which no training FLOPs of dense reach (it stays above" in found.sentence(1)


def test_what_is_never_reached_rests_on_no_runs_of_the_reference(two_architectures):
    dense = {"A": 482.01, "B": 2085.43, "E": 2.4, "alpha": 0.3478, "beta": 0.3658}
    families = families_of({"dense": dense, "memory": dense | {"E": 1.0}}, two_architectures)
    low, high = families.named("memory").curve.domain.amounts["flops"]

    found = multipliers(families, "memory", amounts=np.geomspace(low, high, 30))

    never = list(found.refusals)
    assert (found.candidate_beyond[never] == 1).any(), "within the runs of the candidate"
    assert found.extrapolated[never].all()
    assert np.isinf(found.reference_beyond[never]).all()


def test_no_reference_is_so_small_that_it_is_as_bad(two_architectures):
    dense = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}
    families = families_of({"dense": dense, "memory": dense | {"E": 90.0}}, two_architectures)

    found = multipliers(families, "memory", amounts=[1e17])

    assert "worse than dense at any size searched" in found.refusals[0]


def test_points_outside_the_runs_are_flagged(exact_families):
    found = multipliers(exact_families, "memory", amounts=[1e17, 1e20])

    assert list(found.extrapolated) == [False, True]
    assert "within the runs of both" in found.sentence(0)
    assert "times outside the runs of memory" in found.sentence(1)
    assert "outside the runs of dense" in found.sentence(1)


def test_where_only_the_reference_leaves_its_runs_that_is_flagged_too(exact_families):
    edge = multipliers(exact_families, "memory", measure="active_params", amounts=[9e7], tokens=1e9)  # fmt: skip

    assert edge.candidate_beyond[0] == 1
    assert edge.reference_beyond[0] == pytest.approx(9e7 * WORTH / 1e8, rel=1e-2)


def test_bands_hold_the_curve_and_widen_outside_the_runs(noisy_families):
    found = multipliers(noisy_families, "memory", amounts=[1e17, 1e21])

    assert (found.low < found.multiplier).all()
    assert (found.multiplier < found.high).all()
    assert found.low[0] < 2.97 < found.high[0]
    width = np.log(found.high / found.low)
    assert width[1] > 2 * width[0]
    assert found.share_reached == pytest.approx([1, 1])
    assert len(found.to_frame()) == 2


def test_a_band_without_an_upper_end_says_so(two_architectures):
    dense = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}
    runs = two_architectures(noise=0.01, laws={"dense": dense, "memory": dense | {"E": 1.75}})
    families = fit_families(runs, objective=SQUARES, n_draws=60, hold_out=False)

    found = multipliers(families, "memory", amounts=np.geomspace(1e17, 1e24, 15))

    open_ended = np.isinf(found.high)
    assert open_ended.any()
    assert (found.share_reached[open_ended] < 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidate": "moe"}, "no 'moe'; there are dense, memory"),
        ({"measure": "joules"}, "measure: no 'joules'"),
        ({"measure": "stored_bytes"}, "tokens: stored bytes do not depend on them"),
        ({"amounts": [-1.0]}, "amounts: must be positive"),
        ({"tokens": 0.0}, "tokens: must be positive"),
    ],
)
def test_bad_questions_are_refused(exact_families, options, message):
    with pytest.raises(ValueError, match=message):
        multipliers(exact_families, **({"candidate": "memory"} | options))


def test_a_mixture_is_compared_by_its_active_parameters():
    """Dense needs 2.5 times the FLOPs at every scale: the mixture's loss is that of 2.5 times its active parameters."""
    active, tokens = (v.ravel() for v in np.meshgrid(np.geomspace(3e7, 1e9, 6), [1e9, 4e9, 2e10]))
    example = np.asarray([CHINCHILLA.example[name] for name in CHINCHILLA.parameter_names])
    parts = []
    for name, worth, stored in (("dense", 1.0, 1.0), ("moe", 2.5, 6.0)):
        loss = CHINCHILLA.evaluate({"params": worth * active, "tokens": tokens}, example)
        parts.append(
            pd.DataFrame({"params": stored * active, "active_params": active, "tokens": tokens, "loss": loss}).assign(architecture=name, experts=1 if name == "dense" else 8)
        )  # fmt: skip
    table = pd.concat(parts, ignore_index=True)

    families = fit_families(analysis.load(table), objective=SQUARES, n_draws=0, hold_out=False)

    found = multipliers(families, "moe", amounts=[1e19])
    assert found.multiplier == pytest.approx([2.5], rel=1e-3)
    assert families.named("moe").curve.domain.amounts["total_params"][1] == pytest.approx(6e9)
    assert any(note.startswith("sizes are active_params") for note in families.notes)


@pytest.mark.parametrize("status", list(VerdictStatus))
def test_the_sentence_says_what_the_laws_are_worth(exact_families, status):
    found = multipliers(exact_families, "memory", amounts=[1e17])
    verdict = FitVerdict(status=status, sentence="residuals follow the size")
    sound = FitVerdict(status=VerdictStatus.ADEQUATE, sentence="no pattern")
    fits = {"memory": SimpleNamespace(verdict=verdict), "dense": SimpleNamespace(verdict=sound)}

    sentence = dataclasses.replace(found, fits=fits).sentence(0)

    claimed = status in (VerdictStatus.ADEQUATE, VerdictStatus.DOUBTFUL)
    assert ("times as much" in sentence) == claimed
    if claimed:
        assert sentence.endswith(f"(within the runs of both; laws {status})")
    else:
        told = f"no multiplier is to be relied on, {status}: memory: residuals follow the size"
        assert sentence.endswith(told)

import dataclasses
import math
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

from analysis.fitting.objective import SQUARES
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.registry import law_named
from analysis.plotting.design_figure import design_figure
from analysis.report.next_runs_table import next_runs_table
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.design_candidate import Candidate
from analysis.scaling.design_targets import LossAt, MultiplierAt, parse_target
from analysis.scaling.experimental_design import _misfit_notes, next_runs
from analysis.scaling.seed_noise import _efficiency, noise_variances

by_law = partial(next_runs, by="information")
"""The law alone, without kriging."""

FAR_OUT = LossAt(architecture="memory", inputs={"params": 1e9, "tokens": 2e10})


def candidate(params, tokens, architecture="memory", hours=1.0, **options):
    inputs = {"params": params, "tokens": tokens}
    return Candidate(name=f"{architecture} {params:g} {tokens:g}", architecture=architecture, inputs=inputs, gpu_hours=hours, **options)  # fmt: skip


PLACES = [(1e6, 2e8), (1e8, 2e8), (3e8, 6e8), (1e8, 2e10), (1e7, 2e8)]


def test_narrowing_is_that_of_refits_to_simulated_runs(two_architectures):
    """The oracle fits by scipy, without any of our derivatives, with and without the new run."""
    noise, n_simulated = 0.002, 300
    runs = two_architectures(noise=noise, seed=3).query("architecture == 'memory'")
    families = fit_families(runs, objective=SQUARES, n_draws=0, hold_out=False)
    place = (3e8, 6e8)
    found = by_law(families, [candidate(*place)], FAR_OUT, worth=0.0)
    truth = families.curves()["memory"].parameters[0]
    N, D = np.append(runs.params, place[0]), np.append(runs.tokens, place[1])

    def log_loss(internal, N, D):
        A, B, E = np.exp(internal[:3])
        return np.log(E + A / N ** internal[3] + B / D ** internal[4])

    start = np.append(np.log(truth[:3]), truth[3:])
    generator = np.random.default_rng(0)
    targets = []
    for _ in range(n_simulated):
        y = log_loss(start, N, D) + noise * generator.standard_normal(len(N))
        row = []
        for n in (len(N) - 1, len(N)):
            fit = least_squares(lambda t, n=n, y=y: log_loss(t, N[:n], D[:n]) - y[:n], start, method="lm")  # fmt: skip
            row.append(log_loss(fit.x, 1e9, 2e10))
        targets.append(row)
    before, after = np.std(targets, axis=0)

    # An SD from 300 simulations has an error of 4 %; the ratio, from the same simulations, of less.
    assert found.ranked[0].width == pytest.approx(after / before, rel=0.06)
    sigma = math.sqrt(sum(noise_variances(families.named("memory").fit)))
    assert found.sd * noise / sigma == pytest.approx(before, rel=0.12)


def test_resampling_and_linearising_rank_alike(noisy_families):
    candidates = [candidate(*place) for place in PLACES]

    by = {way: next_runs(noisy_families, candidates, FAR_OUT, by=way) for way in ("information", "draws")}  # fmt: skip

    best = {way: found.ranked[0].candidate.name for way, found in by.items()}
    assert best["information"] == best["draws"] == "memory 3e+08 6e+08"
    ratio = by["draws"].sd / by["information"].sd
    assert 0.6 < ratio < 2.0


def test_the_published_design(published_runs):
    """Reference: linearised by hand from the least-squares fit to the 240 points (facts and data: Besiroglu et al. 2024)."""
    points = published_runs("chinchilla_points.csv")
    points = points[points.outlier_dropped_in_paper == 0].assign(architecture="dense")
    families = fit_families(points, objective=SQUARES, n_draws=0, hold_out=False)
    sizes = (1e8, 3e8, 1e9, 3e9, 1e10, 3e10)
    candidates = [candidate(N, 1e21 / 6 / N, "dense") for N in sizes]

    found = by_law(families, candidates, LossAt(architecture="dense", inputs={"params": 7e10, "tokens": 1.4e12}))  # fmt: skip

    assert found.value == pytest.approx(1.99535, abs=1e-5)
    assert found.sd == pytest.approx(0.0037305, abs=1e-7)
    width = {r.candidate.inputs["params"]: r.width for r in found.ranked}
    expected = (0.969754, 0.992725, 0.997334, 0.997444, 0.995785, 0.990520)
    assert [width[N] for N in sizes] == pytest.approx(expected, abs=1e-6)


def test_the_best_per_gpu_hour_is_first(noisy_families):
    cheap, dear = candidate(3e8, 6e8, hours=1.0), candidate(3e8, 6e8, hours=5.0)

    found = by_law(noisy_families, [dear, cheap], FAR_OUT)

    assert [r.candidate for r in found.ranked] == [cheap, dear]
    assert found.ranked[0].per_gpu_hour == pytest.approx(5 * found.ranked[1].per_gpu_hour)
    assert found.ranked[0].per_gpu_hour == pytest.approx(1 - found.ranked[0].width ** 2)


def test_another_run_at_the_same_place_brings_less(noisy_families):
    twice = [candidate(3e8, 6e8), candidate(3e8, 6e8)]

    found = by_law(noisy_families, twice, FAR_OUT, n_runs=2)

    first, second = found.chosen
    assert first.width > second.width
    assert second.per_gpu_hour < first.per_gpu_hour
    assert "2 runs of 2 GPU-hours would bring it to [" in found.sentence


def test_order_of_running_does_not_change_what_all_bring(noisy_families):
    candidates = [candidate(*place) for place in PLACES]

    ends = [
        by_law(noisy_families, order, FAR_OUT, n_runs=5, worth=0.0).chosen[-1].width
        for order in (candidates, [dataclasses.replace(c, gpu_hours=7.0 - i) for i, c in enumerate(candidates)])
    ]  # fmt: skip

    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_a_limit_buys_one_large_run_where_many_small_ones_bring_less(noisy_families):
    small = [candidate(1e7, 2e8, hours=0.01) for _ in range(3)]
    large = candidate(3e8, 6e8, hours=1.0)

    found = by_law(noisy_families, [*small, large], FAR_OUT, n_runs=3, gpu_hours=1.0, worth=0.0)

    assert [r.candidate for r in found.chosen] == [large]
    assert sum(r.candidate.gpu_hours for r in found.chosen) <= 1.0


def test_nothing_is_chosen_for_too_little(noisy_families):
    found = by_law(noisy_families, [candidate(1e7, 2e8, "dense")], FAR_OUT)

    assert not found.chosen
    assert found.ranked[0].width == pytest.approx(1.0)
    assert "no candidate that fits removes enough" in found.sentence


def test_far_candidates_are_marked_and_can_be_left_out(noisy_families):
    far, near = candidate(1e9, 1e9), candidate(1e8, 2e9)

    marked = by_law(noisy_families, [far, near], FAR_OUT, n_runs=1)
    kept = by_law(noisy_families, [far, near], FAR_OUT, far=4.0, worth=0.0)

    assert marked.chosen[0].candidate is far
    assert marked.ranked[0].tokens_per_param == 1.0
    assert "10 times outside the runs" in marked.notes[0]
    assert [r.candidate for r in kept.chosen] == [near]


def test_shared_coefficients_let_one_architecture_tell_of_another(two_architectures):
    runs = two_architectures(noise=0.004)
    options = {"objective": SQUARES, "n_draws": 0, "hold_out": False}
    other = [candidate(3e8, 6e9, "dense")]

    separate = by_law(fit_families(runs, **options), other, FAR_OUT)
    shared = by_law(fit_families(runs, shared=("B", "E", "beta"), **options), other, FAR_OUT)

    assert separate.ranked[0].width == pytest.approx(1.0)
    assert shared.ranked[0].width < 0.99


def test_a_multiplier_is_narrowed_by_runs_of_either(noisy_families):
    target = MultiplierAt(candidate="memory", reference="dense", amount=1e19)

    found = by_law(noisy_families, [candidate(1e9, 1e10, name) for name in ("dense", "memory")], target)  # fmt: skip

    assert found.value == pytest.approx(2.97, rel=0.2)
    assert all(r.width < 0.995 for r in found.ranked)
    assert found.chosen[-1].width < min(r.width for r in found.ranked)


def test_more_seeds_bring_more_where_seeds_differ(noisy_families):
    few, many = candidate(3e8, 6e8), candidate(3e8, 6e8, n_seeds=8)

    found = by_law(noisy_families, [few, many], FAR_OUT)

    assert [r.candidate for r in found.ranked] == [many, few]


def test_noise_between_seeds_is_told_from_noise_between_configurations(two_architectures):
    runs = two_architectures(noise=0.004, seeds=4)
    configuration = runs.groupby(["architecture", "params", "tokens"]).ngroup()
    runs["loss"] *= np.exp(0.008 * np.random.default_rng(0).standard_normal(36)[configuration])
    families = fit_families(runs, objective=SQUARES, n_draws=0, hold_out=False)

    between, within = noise_variances(families.named("memory").fit)

    assert math.sqrt(within) == pytest.approx(0.004, rel=0.2)
    assert math.sqrt(between) == pytest.approx(0.008, rel=0.5)


@pytest.mark.parametrize("k", [0.05, 0.5, 1.345, 3.0])
def test_efficiency_of_huber_is_the_integral(k):
    x = np.linspace(-12, 12, 400_001)
    psi, inside = np.clip(x, -k, k), np.abs(x) < k
    weight = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])

    assert _efficiency(k) == pytest.approx((inside @ weight) ** 2 / (psi**2 @ weight), rel=1e-3)
    assert _efficiency(0.0) == pytest.approx(2 / math.pi)
    assert _efficiency(math.inf) == 1.0


def test_targets_are_read(noisy_families):
    loss = parse_target("memory: params=1e9, tokens=2e10", noisy_families)
    ratio = parse_target("memory/dense: stored_bytes=1e9, tokens=1e9", noisy_families)

    assert loss == FAR_OUT
    assert loss == parse_target("memory: params=1B, tokens=20B", noisy_families)
    assert ratio == MultiplierAt(candidate="memory", reference="dense", measure="stored_bytes", amount=1e9, tokens=1e9)  # fmt: skip
    assert (
        ratio.description
        == "stored_bytes multiplier of memory over dense at stored_bytes=1e+09 and tokens=1e+09"
    )
    assert CHINCHILLA.inputs == ("params", "tokens")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''; write an architecture"),
        ("params=1e9, tokens=1e9", "cannot read"),
        ("memory: params=many", "cannot read"),
        ("memory: params=, tokens=2B", "cannot read"),
        ("memory: params=1e9", "the law chinchilla takes params, tokens, got params"),
        ("moe: params=1e9, tokens=1e9", "no 'moe'; there are dense, memory"),
        ("memory/dense: joules=3", "no 'joules'"),
    ],
)
def test_targets_that_cannot_be_read_say_how_they_are_written(noisy_families, text, message):
    with pytest.raises(ValueError, match=message):
        parse_target(text, noisy_families)


def test_impossible_candidates_are_refused(noisy_families):
    with pytest.raises(ValueError, match="gpu_hours must be positive, got 0"):
        candidate(1e8, 1e9, hours=0.0)
    with pytest.raises(ValueError, match="n_seeds must be at least 1"):
        candidate(1e8, 1e9, n_seeds=0)
    with pytest.raises(ValueError, match="candidates: none"):
        by_law(noisy_families, [], FAR_OUT)
    with pytest.raises(ValueError, match="inputs lack tokens, got params"):
        by_law(noisy_families, [dataclasses.replace(candidate(1e8, 1e9), inputs={"params": 1e8})], FAR_OUT)  # fmt: skip
    with pytest.raises(ValueError, match="no 'moe'"):
        by_law(noisy_families, [candidate(1e8, 1e9, "moe")], FAR_OUT)


def test_a_further_seed_narrows_as_refitting_with_one_more_does(two_architectures):
    """The oracle is generalised least squares by hand, of all configurations' means, before and after."""
    runs = two_architectures(noise=0.003, seeds=2, seed=5).query("architecture == 'memory'")
    generator = np.random.default_rng(7)
    shared = {key: 0.004 * generator.standard_normal() for key in sorted(set(zip(runs.params, runs.tokens, strict=True)))}  # fmt: skip
    runs = runs.assign(loss=[loss * math.exp(shared[at]) for loss, at in zip(runs.loss, zip(runs.params, runs.tokens, strict=True), strict=True)])  # fmt: skip
    families = fit_families(runs, objective=SQUARES, n_draws=0, hold_out=False)
    fit = families.named("memory").fit
    between, within = noise_variances(fit)
    assert min(between, within) > 1e-6
    N, D = float(runs.params.max()), float(runs.tokens.max())

    (found,) = by_law(families, [candidate(N, D, n_seeds_done=2)], FAR_OUT, worth=0.0).ranked

    theta = families.curves()["memory"].parameters[0]

    def gradient(N, D):
        A, B, E, alpha, beta = theta
        terms = np.array([A / N**alpha, B / D**beta, E])
        slopes = np.array([terms[0], terms[1], E, -terms[0] * np.log(N), -terms[1] * np.log(D)])
        return slopes / terms.sum()

    places = sorted(set(zip(runs.params, runs.tokens, strict=True)))
    J = np.array([gradient(*place) for place in places])
    g = gradient(1e9, 2e10)

    def width(seeds):
        weight = 1 / (between + within / np.asarray(seeds))
        return math.sqrt(g @ np.linalg.inv((J.T * weight) @ J) @ g)

    before, after = width([2] * len(places)), width([2] * (len(places) - 1) + [3])
    assert places[-1] == (N, D)
    assert found.width == pytest.approx(after / before, rel=1e-4)
    assert found.width < 1


def test_seeds_bring_nothing_where_all_noise_is_between_configurations(two_architectures):
    runs = two_architectures(noise=0.003, seed=5)
    twice = fit_families(pd.concat([runs, runs]), objective=SQUARES, n_draws=0, hold_out=False)

    found = by_law(twice, [candidate(1e8, 2e9, n_seeds_done=2)], FAR_OUT, worth=0.0)

    assert found.ranked[0].width == pytest.approx(1.0, abs=1e-9)


def test_without_two_seeds_anywhere_a_further_seed_cannot_be_told(two_architectures):
    families = fit_families(two_architectures(noise=0.003), objective=SQUARES, n_draws=0, hold_out=False)  # fmt: skip

    found = by_law(families, [candidate(1e8, 2e9, n_seeds_done=1)], FAR_OUT)

    assert not found.chosen
    assert found.notes == ["what further seeds bring cannot be told for 1 candidate: no configuration has two seeds; train one with a second seed"]  # fmt: skip


def test_seed_noise_of_another_architecture_is_used_where_one_has_none(two_architectures):
    runs = two_architectures(noise=0.003, seeds=2)
    one = runs.query("architecture == 'dense' or seed == 0")
    families = fit_families(one, objective=SQUARES, n_draws=0, hold_out=False)
    dense, memory = (families.named(n).fit for n in ("dense", "memory"))

    assert noise_variances(memory)[1] == 0
    assert noise_variances(memory, families.fits)[1] == pytest.approx(noise_variances(dense)[1])
    found = by_law(families, [candidate(1e8, 2e9, n_seeds_done=1)], FAR_OUT, worth=0.0)
    assert found.ranked[0].width < 1


@pytest.fixture(scope="module")
def misfit(two_architectures):
    """Runs whose loss bends with the size as no law of the sort does, and places to run next."""
    runs = two_architectures(noise=0.0005, seeds=2, laws={"memory": LAW})
    bend = 0.05 * np.sin(4 * np.log10(runs.params)) * np.log10(runs.tokens / runs.params)
    runs["loss"] *= np.exp(bend)
    laws = fit_families(runs, objective=SQUARES, n_draws=0, hold_out=False)
    assert laws.named("memory").fit.verdict.is_misfit
    sizes = [(N, ratio * N) for N in np.geomspace(1e6, 3e8, 6) for ratio in (10.0, 40.0)]
    return laws, [candidate(N, D, hours=N * D / 1e15) for N, D in sizes]


LAW = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}


def test_with_a_wrong_law_kriging_chooses_runs_of_many_sizes(misfit):
    laws, candidates = misfit

    found = next_runs(laws, candidates, FAR_OUT, n_runs=6, gpu_hours=50.0, worth=0.0)

    sizes = [r.candidate.inputs["params"] for r in found.chosen]
    assert sum(r.candidate.gpu_hours for r in found.chosen) <= 50.0
    assert len({id(r.candidate) for r in found.chosen}) == len(found.chosen) >= 3
    assert len(set(sizes)) >= 2
    assert max(sizes) > 1e7
    (note,) = [n for n in found.notes if "misfits" in n]
    assert note.endswith(
        "kriging, which needs no law, gives the target's value and chooses the runs"
    )


def test_the_value_of_a_target_of_a_wrong_law_is_that_of_kriging(misfit):
    laws, candidates = misfit
    runs = laws.named("memory").fit

    near = LossAt(architecture="memory", inputs={"params": 1e8, "tokens": 2e9})
    found = next_runs(laws, candidates, near, worth=0.0)

    there = (runs.inputs["params"] > 0.99e8) & (runs.inputs["tokens"] == 2e9)
    assert there.any()
    assert found.value == pytest.approx(float(runs.y[there].mean()), rel=0.01)


def test_a_multiplier_of_a_wrong_law_is_refused(misfit, two_architectures):
    laws, candidates = misfit
    good = two_architectures(noise=0.0005, seeds=2).query("architecture == 'dense'")
    both = dataclasses.replace(laws, by_name={**laws.by_name, "dense": fit_families(good, n_draws=0, hold_out=False).named("dense")})  # fmt: skip

    with pytest.raises(
        ValueError, match=r"the law of memory misfits .* give another law, or a loss"
    ):
        next_runs(
            both, candidates, MultiplierAt(candidate="memory", reference="dense", amount=1e16)
        )


DENSE_FAR_OUT = LossAt(architecture="dense", inputs={"params": 1e9, "tokens": 2e10})


@pytest.fixture(scope="module")
def dense_by(two_architectures):
    runs = two_architectures(noise=0.004, seeds=2, seed=1).query("architecture == 'dense'")

    def fitted(law):
        return fit_families(runs, law=law_named(law), objective=SQUARES, n_draws=0, hold_out=False)

    return fitted


def test_a_further_law_adds_its_variance_and_its_disagreement(dense_by):
    first, further = dense_by("chinchilla"), dense_by("chinchilla_tied")
    towards = [candidate(5e8, 1e10, "dense")]

    one, other = (by_law(laws, towards, DENSE_FAR_OUT) for laws in (first, further))
    both = next_runs(first, towards, DENSE_FAR_OUT, others=[further])

    apart = math.log(one.value / other.value) / 2
    assert both.sd == pytest.approx(math.sqrt((one.sd**2 + other.sd**2) / 2 + apart**2))
    assert both.value == one.value
    assert "averaged over the laws chinchilla, chinchilla_tied" in both.notes


def test_a_further_law_that_misfits_does_not_count(dense_by):
    first, wrong = dense_by("chinchilla"), dense_by("kaplan")
    towards = [candidate(5e8, 1e10, "dense")]

    alone, both = (next_runs(first, towards, DENSE_FAR_OUT, others=o) for o in ([], [wrong]))

    assert both.sd == alone.sd
    assert any(note.startswith("kaplan does not count: misfit") for note in both.notes)


def test_it_says_in_words_what_the_runs_bring(noisy_families):
    found = next_runs(noisy_families, [candidate(3e8, 6e8)], FAR_OUT)

    for said, width in (("is ", 1.0), ("would bring it to ", found.chosen[0].width)):
        factor = math.exp(1.96 * found.sd * width)
        low, high = re.search(re.escape(said) + r"[\d. ]*\[(.*?), (.*?)\]", found.sentence).groups()
        assert float(low) == pytest.approx(found.value / factor, abs=0.0006)
        assert float(high) == pytest.approx(found.value * factor, abs=0.0006)
    assert "1 run of 1 GPU-hours" in found.sentence
    assert "±" not in found.sentence


def test_of_a_target_that_runs_do_not_determine_no_number_is_said(noisy_families):
    """An interval of e**1000 is no interval."""
    found = by_law(noisy_families, [candidate(3e8, 6e8)], FAR_OUT, worth=0.0)

    vague = dataclasses.replace(found, sd=1e3)

    assert found.is_known
    assert not vague.is_known
    assert "is not known to within a factor of 2:" in vague.sentence
    assert vague.sentence.endswith("add sizes further apart")


@pytest.mark.parametrize(("factor", "known"), [(1.9, True), (2.1, False), (66.0, False)])
def test_a_loss_known_to_a_factor_of_two_at_best_is_not_known(noisy_families, factor, known):
    found = by_law(noisy_families, [candidate(3e8, 6e8)], FAR_OUT, worth=0.0)

    wide = dataclasses.replace(found, sd=math.log(factor) / 1.96)

    assert wide.is_known == known
    assert ("[" in wide.sentence) == known


def test_a_multiplier_may_be_off_by_more(noisy_families):
    target = MultiplierAt(candidate="memory", reference="dense", amount=1e19)
    found = by_law(noisy_families, [candidate(1e9, 1e10)], target)

    wide = dataclasses.replace(found, sd=math.log(66) / 1.96)

    assert wide.is_known
    assert f"{wide.value * 66:.0f}" in wide.sentence.replace(",", "").split("]")[0]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("total_params", "loss of memory at 491 k total parameters is"),
        ("training_flops", "loss of memory at 4.91e+05 training FLOPs is"),
        ("own_column", "loss of memory at x=491280 is"),
    ],
)
def test_a_size_is_named_by_what_it_is(noisy_families, column, words):
    found = by_law(noisy_families, [candidate(3e8, 6e8)], FAR_OUT, worth=0.0)
    laws = dataclasses.replace(noisy_families, columns={"x": column})

    of_x = dataclasses.replace(
        found, laws=laws, target=LossAt(architecture="memory", inputs={"x": 491_280})
    )

    assert of_x.sentence.startswith(words)


def test_hours_are_of_cores_where_candidates_say_so(noisy_families):
    offered = [candidate(3e8 * i, 6e8 * i, unit="core-hours") for i in (1, 2, 3)]

    found = next_runs(noisy_families, offered, FAR_OUT, n_runs=1)
    table = next_runs_table(found, rows=1)

    assert "1 run of 1 core-hours" in found.sentence
    assert {"core-hours", "removed per core-hour"} <= set(table.columns)
    assert "2 more candidates bring less per core-hour" in table.notes
    assert design_figure(found).axes[1].get_xlabel() == "Core-hours"


def test_a_law_that_misfits_is_said():
    verdicts = {
        "moe": FitVerdict(status=VerdictStatus.MISFIT, sentence="residuals follow the size"),
        "dense": FitVerdict(status=VerdictStatus.DOUBTFUL, sentence="few runs"),
    }
    fits = {name: SimpleNamespace(verdict=verdict) for name, verdict in verdicts.items()}
    laws = SimpleNamespace(by_name={n: SimpleNamespace(fit=fit) for n, fit in fits.items()})

    (note,) = _misfit_notes(laws)

    assert note.startswith("the law of moe misfits its runs (residuals follow the size)")


def test_candidates_may_be_dicts_of_their_fields(noisy_families):
    one = candidate(3e8, 6e8)
    fields = {"name": one.name, "architecture": "memory", "inputs": one.inputs, "gpu_hours": 1.0}

    found = next_runs(noisy_families, [fields], FAR_OUT)

    assert found.ranked[0].candidate.inputs == one.inputs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"params": 1e9, "tokens": 1e10},
            r"candidates, number 0 \(from 0\): name, architecture, inputs, gpu_hours missing; "
            r"params, tokens unknown; give .* inputs=\{'params': 1000000000.0, 'tokens'",
        ),
        (
            {"name": "a", "architecture": "memory", "inputs": 1e9, "gpu_hours": 1.0},
            "inputs must be a dict, got 1000000000.0",
        ),
        (
            {"name": "a", "architecture": "memory", "inputs": {"params": 1e9}, "gpu_hours": 1.0},
            "candidate a: inputs lack tokens, got params; the law chinchilla takes params, tokens",
        ),
    ],
)
def test_a_wrong_candidate_says_what_it_needs(noisy_families, fields, message):
    with pytest.raises(ValueError, match=message):
        next_runs(noisy_families, [fields], FAR_OUT)

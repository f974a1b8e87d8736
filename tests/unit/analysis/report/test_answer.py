import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import analysis
from analysis.fitting.bootstrap import contrast_of_means, p_value_with_seeds
from analysis.fitting.multiple_comparisons import holm
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.report.advice import advice, seeds_needed
from analysis.report.answer import AnswerStatus, sweep_answer
from analysis.report.difference_tables import differences_table
from analysis.scaling.best_settings import tuned_settings
from analysis.scaling.comparison import ArchitectureComparison
from analysis.scaling.cost_measures import COST_MEASURES
from analysis.scaling.equal_cost import CostDifference, equal_cost
from analysis.scaling.series_curves import CurveSpec

NO_LAWS = ArchitectureComparison()


def answer_of(synthetic, folder, trials, *, comparison=NO_LAWS):
    runs = analysis.load(synthetic.write_runs(folder, trials))
    fits = analysis.fit_sweep(runs, n_draws=20)
    return sweep_answer(runs, fits, comparison), fits


def test_what_differs_is_said_with_interval_size_and_correction(runs, fits):
    found = sweep_answer(runs, fits, NO_LAWS)

    (by_flops,) = (d for d in found.differences.differences if d.measure.name == "flops")
    assert found.status is AnswerStatus.TOLD_APART
    first = found.sentences[0]
    assert first.startswith("At equal training FLOPs memory_plus is better than dense")
    assert f"{by_flops.mean.value:+.3f} [" in first
    assert "over 6 sizes" in first
    assert "over 6 sizes (p " in first, "the p-value is of the mean"
    assert "after Holm's correction for 2 comparisons), " in first
    assert len(found.sentences) <= 3


def test_a_difference_of_some_sizes_says_of_how_many(runs, fits):
    found = sweep_answer(runs, fits, NO_LAWS)

    assert found.sentences[-1].startswith(
        "memory_plus is worse at equal stored parameters at 4 of 6 sizes (-0.02"
    )


def test_without_a_difference_it_is_open_and_says_how_many_seeds_would_tell(synthetic, tmp_path):
    same = [
        replace(t, metrics={**t.metrics, "recall/train_wording/exact_match": 0.5 + shift})
        for seed in range(3)
        for t in synthetic.make_sweep(seeds=(seed,), sizes=(32, 64))
        for shift in [0.005 * seed + 0.004 * (t.spec.architecture == "dense")]
    ]
    found, fits = answer_of(synthetic, tmp_path, same)

    assert found.status is AnswerStatus.OPEN
    assert "memory_plus and dense are not told apart" in found.sentences[0]
    (needed,) = {
        seeds_needed(d, n_open=found.differences.n_open)
        for d in found.differences.differences
        if d.measure.name == "flops"
    }
    words = advice(found, fits, NO_LAWS, sweep="s")
    assert f"about {needed} seeds or more of each configuration" in words[0]


@pytest.mark.parametrize(("spread", "needed"), [(0.05, 3), (0.1, 6), (1.0, 31)])
def test_seeds_are_those_at_which_welchs_test_tells_the_means_apart(spread, needed):
    first, second = [1.0 - spread, 1.0 + spread], [1.2 - spread, 1.2 + spread]
    mean = contrast_of_means([(1.0, first), (-1.0, second)])
    difference = CostDifference(
        measure=COST_MEASURES["flops"],
        candidate="memory",
        reference="dense",
        outcome="loss",
        n_sizes=1,
        n_unmatched=0,
        interpolated=False,
        mean=mean,
        largest=mean,
        largest_amount=1e9,
    )

    assert seeds_needed(difference, n_open=1) == needed
    # By scipy, of n seeds with means and spreads as they are.
    sd = spread * math.sqrt(2)
    p = [
        stats.ttest_ind_from_stats(1.0, sd, n, 1.2, sd, n, equal_var=False).pvalue
        for n in (needed - 1, needed)
    ]
    assert needed > 30 or p[0] > 0.05 >= p[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_reference_of_more_seeds_keeps_them(seed):
    """Two seeds of the candidate, ten of the reference."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(-0.02, 0.01, 2), generator.normal(0, 0.01, 10)
    mean = contrast_of_means([(1.0, first), (-1.0, second)])

    def p(n):
        sides = ((v.mean(), v.std(ddof=1), max(n, len(v))) for v in (first, second))
        return stats.ttest_ind_from_stats(*itertools.chain(*sides), equal_var=False).pvalue

    needed = seeds_needed(SimpleNamespace(mean=mean, level=0.95), n_open=1)

    assert needed == next((n for n in range(3, 31) if p(n) <= 0.05), 31)


@pytest.mark.parametrize("shift", [0.003, 0.006, 0.012])
def test_of_many_comparisons_seeds_are_those_that_pass_holms_correction(shift):
    """Each difference alone gets the seeds; the other eleven stay as they are."""
    generator = np.random.default_rng(3)
    means = [
        contrast_of_means(
            [
                (1.0, shift + 0.01 * generator.standard_normal(3)),
                (-1.0, 0.01 * generator.standard_normal(3)),
            ]
        )
        for _ in range(12)
    ]
    p_values = [mean.p for mean in means]
    adjusted = holm(p_values)
    n_open = sum(p > 0.05 for p in adjusted)
    assert max(adjusted) == 1.0, "where the correction is capped, p_holm / p says too little"

    def told_apart(i, n):
        then = [*p_values]
        then[i] = p_value_with_seeds(means[i], n)
        return holm(then)[i] <= 0.05

    for i, mean in enumerate(means):
        if adjusted[i] > 0.05:
            needed = seeds_needed(SimpleNamespace(mean=mean, level=0.95), n_open=n_open)
            assert needed == next((n for n in range(4, 31) if told_apart(i, n)), 31)


def interpolated_sweep(*, shift, noise):
    """Two seeds: dense at five budgets, its loss bent, and a memory between two of them."""
    generator = np.random.default_rng(3)
    budgets = np.asarray([1e15, 3e15, 1e16, 3e16, 1e17])
    bend = 0.4 * np.exp(-(((np.log10(budgets) - 15.9) / 0.25) ** 2))
    dense = 2 + bend + 3 * (budgets / 1e15) ** -0.3
    rows = [
        {
            "architecture": name,
            "configuration": f"{name} {flops:g}",
            "seed": seed,
            "training_flops": flops,
            "total_params": math.sqrt(flops),
            "training_tokens": 1e9,
            "loss": loss + noise * generator.standard_normal(),
        }
        for name, flops, loss in [
            *(("dense", *pair) for pair in zip(budgets.tolist(), dense, strict=True)),
            ("memory", 5.5e15, 4.007 + shift),
        ]
        for seed in range(2)
    ]
    found = equal_cost(pd.DataFrame(rows), reference="dense")
    return replace(found, differences=[d for d in found.differences if d.measure.name == "flops"])


def advice_on(differences):
    answer = SimpleNamespace(differences=differences)
    nothing = SimpleNamespace(best=(), tuned={}, curves=())
    return advice(answer, nothing, NO_LAWS, sweep="s")


def test_where_the_interpolation_hides_a_difference_no_seeds_are_promised():
    found = interpolated_sweep(shift=-0.1, noise=1e-4)

    (difference,) = found.differences
    assert difference.interpolated
    assert difference.verdict == "not told apart"
    assert seeds_needed(difference, n_open=1) == math.inf
    (words,) = advice_on(found)
    assert words.startswith("memory: no number of seeds would tell a difference of 0.1 at equal")
    assert f"with an error of about {difference.mean.extra_sd:.2g}." in words
    assert words.endswith("Train sizes of dense that are nearer in training FLOPs.")


def test_an_interpolated_reference_has_as_many_seeds_as_it_was_trained_with():
    """One size of the candidate and four of the reference, with two seeds each: ten runs."""
    found = interpolated_sweep(shift=-0.2, noise=0.15)

    (difference,) = found.differences
    needed = seeds_needed(difference, n_open=1)
    assert difference.verdict == "not told apart"
    assert 2 < needed <= 5
    assert f"about {needed} seeds or more of each configuration" in advice_on(found)[0]


def test_a_size_of_one_seed_is_left_out_and_its_seed_is_named(synthetic, tmp_path):
    trials = [
        t
        for t in synthetic.make_sweep(seeds=(0, 1))
        if (t.spec.architecture, t.spec.preset, t.spec.seed) != ("memory_plus", "32w", 1)
    ]
    found, fits = answer_of(synthetic, tmp_path, trials)

    assert found.status is AnswerStatus.TOLD_APART
    assert "on average over 5 sizes (p " in found.sentences[0]
    said = "1 size is left out, which lacks seed 1 of memory_plus 32w"
    assert found.sentences[0].endswith(f"; {said}.")
    table = differences_table(found.differences, fits)
    assert table.rows[0][3].startswith("5 of 6")
    assert f"memory_plus: {said}" in table.notes
    assert advice(found, fits, NO_LAWS, sweep="s")[0] == (
        "Train seed 1 of memory_plus 32w: a size with one seed is left out of the mean."
    )


def test_only_what_has_one_seed_needs_a_second(synthetic, tmp_path):
    trials = synthetic.make_sweep(seeds=(0, 1)) + synthetic.make_sweep(
        seeds=(0,), architectures=("peer",)
    )
    found, fits = answer_of(synthetic, tmp_path, trials)

    words = advice(found, fits, NO_LAWS, sweep="s")[0]
    assert words.startswith("Train seed 1 of peer 32w, ")
    assert words.endswith(" more: with one seed nothing says whether a difference is noise.")


def test_seeds_that_the_reference_lacks_are_asked_of_it_and_others_get_their_advice():
    """Dense has one seed at the size of A; B is not told apart from it at another."""
    seeds = {("dense", 1): 3, ("dense", 2): 1, ("A", 2): 3, ("B", 1): 3}
    rows = [
        {
            "architecture": name,
            "preset": f"d{size}",
            "configuration": f"{name} {size}",
            "seed": seed,
            "training_flops": 1e12 * size,
            "total_params": 1e6 * size,
            "training_tokens": 1e6,
            "loss": 3.0 - 0.1 * size + 0.01 * seed + 0.015 * (name == "B"),
        }
        for (name, size), n in seeds.items()
        for seed in range(n)
    ]
    found = equal_cost(pd.DataFrame(rows), reference="dense")

    words = advice_on(found)

    assert words[0] == (
        "Train seeds 1 and 2 of dense d2: with one seed nothing says whether a difference is noise."
    )
    assert words[1].startswith("B: about ")
    assert len(words) == 2


def of_a_baseline_that_failed(runs, architectures):
    """The runs of some architectures, and a dense trial that diverged."""
    failed = {
        "trial_id": "dense-1",
        "sweep": "s",
        "architecture": "dense",
        "seed": 0,
        "state": "failed",
        "reason": "diverged in attempt 1: step 2: loss is nan",
    }
    table = pd.concat(
        runs.table[runs.table["architecture"] == "memory_plus"].assign(
            architecture=name, configuration=lambda t, name=name: name + t["configuration"]
        )
        for name in architectures
    )
    return replace(runs, table=table, excluded=pd.DataFrame([failed, {**failed, "seed": 1}]))


def test_a_baseline_that_failed_is_named_with_the_reason(runs):
    why = "dense-1: diverged in attempt 1: step 2: loss is nan; 1 more trial excluded."
    lost = "The baseline dense has no run that counts"
    alone = of_a_baseline_that_failed(runs, ["peer"])
    several = of_a_baseline_that_failed(runs, ["peer", "moe"])

    nothing, other = (
        sweep_answer(r, analysis.fit_sweep(r, n_draws=0), NO_LAWS) for r in (alone, several)
    )

    assert nothing.status is AnswerStatus.NO_COMPARISON
    assert nothing.sentences[0] == f"{lost}. {why}"
    assert other.sentences[0] == f"{lost}; others are compared with peer. {why}"
    assert other.sentences[1].startswith("At equal training FLOPs moe and peer are not told apart")


def test_seeds_that_do_not_differ_are_no_answer(runs):
    """As where one model knows no fact with any seed, and another one fact of 300."""
    recall = runs.table["architecture"].map(lambda name: 0.0 if name == "dense" else 1 / 60)
    equal = replace(runs, table=runs.table.assign(factual_recall=recall))

    found = sweep_answer(equal, analysis.fit_sweep(equal, n_draws=0), NO_LAWS)

    assert found.status is AnswerStatus.NO_COMPARISON
    assert "has no interval (seeds do not differ): factual recall +0.0167" in found.sentences[0]
    assert advice_on(found.differences)[0].startswith(
        "memory_plus: no seed differs from another, so nothing"
    )


def test_one_seed_is_no_answer(synthetic, tmp_path):
    found, fits = answer_of(synthetic, tmp_path, synthetic.make_sweep(seeds=(0,)))

    assert found.status is AnswerStatus.NO_COMPARISON
    assert "has no interval (one seed)" in found.sentences[0]
    assert found.sentences[-1].startswith(
        "memory_plus against dense has no interval (one seed) at equal stored parameters at 4 of 6"
    )
    assert "second and a third seed" in advice(found, fits, NO_LAWS, sweep="s")[0]
    assert differences_table(found.differences, fits).records()[0]["p_holm"] is None


def test_one_architecture_is_answered_by_its_curve_and_no_misfit_is_claimed(synthetic, tmp_path):
    trials = synthetic.make_sweep(architectures=("dense",))
    found, fits = answer_of(synthetic, tmp_path, trials)

    curve = fits.curve("dense", outcome="factual_recall", x="total_params")
    claimed = not curve.verdict.is_misfit and "No curve" not in " ".join(found.sentences)
    assert found.status is AnswerStatus.NO_COMPARISON
    assert claimed == (curve.verdict.status in ("adequate", "doubtful"))


def test_no_number_of_a_misfit_is_claimed(runs, fits):
    """The laws of these accuracies misfit their losses, which fall as a sigmoid does."""
    contents = analysis.report_contents(runs, fits)
    curve = next(c for c in contents.comparison.multipliers if c.measure.name == "flops")
    assert curve.verdict.is_misfit

    told = "is not claimed: the laws that multipliers rest on are a misfit (see report.html)."
    assert told in contents.answer.sentences[1], "they are no table of the terminal's"
    assert "so no run can be said to narrow it most" in " ".join(contents.advice)


def comparison_with(*, low, high, status=VerdictStatus.DOUBTFUL):
    """One multiplier of 1.3 at equal FLOPs, of laws in stored parameters."""
    curve = SimpleNamespace(
        candidate="memory_plus",
        reference="dense",
        measure=COST_MEASURES["flops"],
        outcome="loss",
        amount=np.asarray([1.96e10]),
        multiplier=np.asarray([1.3]),
        low=np.asarray([low]),
        high=np.asarray([high]),
        extrapolated=np.asarray([False]),
        verdict=FitVerdict(status=status, sentence=""),
    )
    laws = SimpleNamespace(columns={"x": "total_params"})
    return SimpleNamespace(multipliers=[curve], laws=laws)


def test_a_multiplier_without_an_interval_is_not_claimed(runs, fits):
    sure, unknown = (
        sweep_answer(runs, replace(fits, curves=()), comparison_with(low=low, high=np.nan))
        for low in (1.1, np.nan)
    )

    assert sure.sentences[1] == (
        "For the loss of memory_plus at 1.96e+10 FLOPs, dense needs 1.3× [1.1, ∞] as many"
        " (laws doubtful)."
    )
    assert unknown.sentences[1] == (
        "How many times the FLOPs of memory_plus dense needs for the same loss is not claimed: it"
        " has no interval, so nothing says how well the runs determine it."
    )


@pytest.mark.parametrize("status", [VerdictStatus.DOUBTFUL, VerdictStatus.UNDERDETERMINED])
def test_a_law_that_misfits_among_the_curves_gives_no_multiplier(runs, fits, status):
    """Multipliers fit the same law once more, and may judge it more kindly."""
    misfit = SimpleNamespace(
        series="dense",
        spec=CurveSpec(outcome="loss", x="total_params", law="power_law"),
        fit=SimpleNamespace(verdict=FitVerdict(status=VerdictStatus.MISFIT, sentence="")),
    )
    comparison = comparison_with(low=1.1, high=1.5, status=status)

    found = sweep_answer(runs, replace(fits, curves=[misfit]), comparison)

    assert found.sentences[1].endswith(
        "is not claimed: the law of dense is a misfit (see Fitted curves)."
    )


def test_of_laws_that_runs_do_not_determine_no_width_is_said(runs, fits):
    answer = sweep_answer(runs, fits, NO_LAWS)
    law = SimpleNamespace(
        fit=SimpleNamespace(verdict=FitVerdict(status=VerdictStatus.UNDERDETERMINED, sentence=""))
    )
    laws = SimpleNamespace(by_name={"dense": law})
    for design in (
        SimpleNamespace(chosen=(), is_known=True),
        SimpleNamespace(chosen=("a run",), is_known=False),
    ):
        comparison = SimpleNamespace(laws=laws, design=design)

        words = advice(answer, fits, comparison, sweep="s")[-1]

        assert "Add sizes further apart: many curves fit the runs of dense" in words
        assert "memscale next s --candidates" in words


def tuned_sweep(synthetic, values):
    """Dense at several learning rates, memory_plus at one."""
    trials = []
    for architecture in ("dense", "memory_plus"):
        for lr in values[architecture]:
            for t in synthetic.make_sweep(architectures=(architecture,), sizes=(32, 64)):
                shift = 0.1 * abs(lr - 0.01)
                metrics = {k: v + shift * ("loss" in k) for k, v in t.metrics.items()}
                spec = replace(t.spec, train={**t.spec.train, "lr": lr})
                trials.append(replace(t, spec=spec, metrics=metrics))
    return trials


def test_an_arm_that_was_tuned_while_another_was_not_is_said(synthetic, tmp_path):
    trials = tuned_sweep(synthetic, {"dense": (0.003, 0.01, 0.03), "memory_plus": (0.003,)})
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))
    fits = analysis.fit_sweep(runs, n_draws=5)

    assert tuned_settings(runs.table, fits.varied) == {
        "dense": {"train.lr": 3},
        "memory_plus": {"train.lr": 1},
    }
    contents = analysis.report_contents(runs, fits)
    said = "train.lr was not varied for memory_plus, while dense had up to 3 values"
    assert any(said in sentence for sentence in contents.answer.sentences)
    table = contents.tables[1].to_frame()
    assert set(table["tuned"]) == {"lr: 3 values", "lr: not varied"}
    assert "Vary train.lr for memory_plus too" in " ".join(contents.advice)


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_the_level_of_the_intervals_is_that_of_the_verdict(runs, level):
    found = equal_cost(runs.table, reference="dense", level=level)

    for one in found.differences:
        assert (one.verdict in ("better", "worse")) == (one.p_holm <= 1 - level)


def test_a_memory_that_grows_on_a_preset_is_answered_by_its_trend(synthetic, tmp_path):
    """Figure 1 of Memory Layers: tables of several sizes, one base, and the base without any."""
    trials = [synthetic.make_trial("dense", 64, seed) for seed in range(3)]
    for seed in range(3):
        for n_keys in (8, 16, 32, 64):
            trial = synthetic.make_trial("memory_plus", 64, seed)
            counts = dict(trial.spec.accounting)
            counts["total_params"] += n_keys**2 * 64
            counts["params_memory_values"] = counts["memory_params"] = n_keys**2 * 64.0
            counts["training_flops"] *= 1.5
            model = {**trial.spec.model, "n_keys": n_keys}
            spec = replace(trial.spec, model=model, accounting=counts)
            recall = 0.2 + 0.1 * (n_keys.bit_length() - 4) + 0.001 * seed
            metrics = {**trial.metrics, "recall/train_wording/exact_match": recall}
            trials.append(replace(trial, spec=spec, metrics=metrics))

    found, _ = answer_of(synthetic, tmp_path, trials)

    assert found.status is AnswerStatus.TOLD_APART
    assert found.sentences[0].startswith("At equal preset and tokens, of 4 settings against dense")
    assert "Twice the memory parameters change factual recall of memory_plus 64w by +0.05" in " ".join(found.sentences)  # fmt: skip


def test_the_baseline_is_what_others_were_matched_to(synthetic, tmp_path):
    matched = {"training_flops": "pythia", "solve": "tokens"}
    trials = [synthetic.make_trial("cosformer", 64, 0), synthetic.make_trial("pythia", 64, 0)]
    other = synthetic.make_trial("memoryformer", 64, 0)
    trials.append(replace(other, spec=replace(other.spec, match=matched)))
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))

    assert analysis.fit_sweep(runs, n_draws=0).baseline == "pythia"
    assert analysis.fit_sweep(runs, n_draws=0, baseline="cosformer").baseline == "cosformer"
    with pytest.raises(ValueError, match="no runs of 'peer'; there are cosformer, memoryformer"):
        analysis.fit_sweep(runs, n_draws=0, baseline="peer")


def test_a_match_of_step_times_is_reported_as_one(synthetic, tmp_path):
    """Dense got the width with which its step takes as long: it is not that of its preset."""
    trials = []
    for d_model in (32, 64):
        for seed in range(2):
            memory, dense = (
                synthetic.make_trial(name, d_model, seed) for name in ("memory_plus", "dense")
            )
            flops = dense.spec.accounting["training_flops"]
            spec = replace(
                dense.spec,
                match={"step_time": "memory_plus", "solve": "d_ff"},
                accounting={**dense.spec.accounting, "training_flops": 1.7 * flops},
            )
            for trial, loss in ((memory, 3.9), (replace(dense, spec=spec), 3.7)):
                metrics = {"valid/loss": loss - 0.005 * d_model + 0.003 * seed}
                trials.append(replace(trial, metrics=metrics))

    found, fits = answer_of(synthetic, tmp_path, trials)

    assert found.status is AnswerStatus.TOLD_APART
    assert found.sentences[0].startswith(
        "At equal step time (matched within 5 %) memory_plus is worse than dense:"
        " loss (nats/token) +0.2"
    )
    table = differences_table(found.differences, fits)
    assert table.rows[0][0] == "step time (matched within 5 %)"
    assert not any(row[0] == "preset and tokens" for row in table.rows)
    assert any("timed when the sweep was planned" in note for note in table.notes)
    assert all(note.endswith("match held step_time equal, not training_flops") for note in fits.unpaired)  # fmt: skip


def one_size_trials(synthetic, losses, *, seeds=(0,)):
    """Architecture to its losses at learning rates of 1e-3, 3e-3 and so on."""
    trials = []
    for architecture, of_rates in losses.items():
        for lr, loss in zip((0.001, 0.003), of_rates, strict=False):
            for seed in seeds:
                t = synthetic.make_trial(architecture, 64, seed)
                spec = replace(t.spec, train={**t.spec.train, "lr": lr})
                trials.append(replace(t, spec=spec, metrics={"valid/loss": loss + 0.01 * seed}))
    return trials


AT_ONE_SIZE = {"dense": (3.9, 3.666), "engram": (3.6, 3.541), "moe": (3.7,), "peer": (3.62, 3.8)}


def test_of_one_size_and_one_seed_the_best_are_named(synthetic, tmp_path):
    runs = analysis.load(synthetic.write_runs(tmp_path, one_size_trials(synthetic, AT_ONE_SIZE)))
    contents = analysis.report_contents(runs, analysis.fit_sweep(runs, n_draws=5))

    assert contents.answer.status is AnswerStatus.NO_COMPARISON
    assert contents.answer.sentences[0] == (
        "At one size (64w) and equal training FLOPs, loss (nats/token) with the best settings tried"
        " is lowest for engram 3.541, peer 3.62 and dense 3.666. One seed each: no interval."
    )


def test_the_reference_is_named_where_it_is_not_among_the_best(synthetic, tmp_path):
    losses = {"dense": (4.0,), "engram": (3.6,), "moe": (3.7,), "peer": (3.5,)}
    found, _ = answer_of(synthetic, tmp_path, one_size_trials(synthetic, losses))

    assert found.sentences[0] == (
        "At one size (64w) and equal training FLOPs, loss (nats/token) is lowest for peer 3.5,"
        " engram 3.6 and moe 3.7; dense 4. One seed each: no interval."
    )


def test_several_seeds_are_no_bare_ranking(synthetic, tmp_path):
    losses = {"dense": (4.0,), "engram": (3.6,), "moe": (3.7,)}
    trials = one_size_trials(synthetic, losses, seeds=(0, 1))
    found, _ = answer_of(synthetic, tmp_path, trials)

    assert "2 are better" in found.sentences[0]


def test_architectures_of_few_sizes_are_named_once(synthetic, tmp_path):
    answer, fits = answer_of(synthetic, tmp_path, one_size_trials(synthetic, AT_ONE_SIZE))

    assert {"dense (lr=1e-3)", "dense (lr=3e-3)"} <= {c.series for c in fits.curves}
    assert "Add sizes of dense, engram, moe, peer: a curve" in advice(answer, fits, NO_LAWS, sweep="s")[-1]  # fmt: skip


def test_curves_of_few_sizes_are_named_with_their_settings(synthetic, tmp_path):
    sizes = {("dense", 0.001): 6, ("dense", 0.003): 3, ("moe", 0.001): 2}
    trials = []
    for (architecture, lr), n_sizes in sizes.items():
        for t in synthetic.make_sweep(architectures=(architecture,), seeds=(0,))[:n_sizes]:
            trials.append(replace(t, spec=replace(t.spec, train={**t.spec.train, "lr": lr})))
    answer, fits = answer_of(synthetic, tmp_path, trials)

    def said(curves):
        words = advice(answer, replace(fits, curves=curves), NO_LAWS, sweep="s")
        return next(one for one in words if one.startswith("Add sizes of"))

    assert "Add sizes of dense (lr=3e-3), moe: a curve" in said(fits.curves)
    few = next(c for c in fits.curves if c.series == "moe")
    others = [replace(few, series=f"moe ({n})") for n in range(4)]
    assert "Add sizes of dense (lr=3e-3), moe: a curve" in said([*fits.curves, *others])

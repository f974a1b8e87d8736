import dataclasses
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import analysis
from analysis.laws.registry import law_named
from analysis.scaling.architecture_laws import fit_families
from analysis.scaling.candidate_trials import (
    _worse_settings,
    candidates_of,
    default_target,
    propose,
)
from analysis.scaling.comparison import compare_architectures
from analysis.scaling.design_sweep import sweep_texts
from analysis.scaling.design_targets import LossAt
from analysis.scaling.experimental_design import next_runs
from analysis.scaling.sweep_laws import _law_for, fit_sweep_laws
from analysis.scaling.sweep_summary import best_rows
from orchestrator import cli
from orchestrator.planning.pricing import account, make_plan, recorded
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep
from orchestrator.sweep.parsing.discovery import Source, joined

SWEEP = """# Question: what does a table buy?
name: tables
data: {source: biographies, style: compact, n_people: 60, n_first_names: 10, n_middle_names: 10, n_last_names: 10, n_years: 5, n_cities: 5, n_universities: 5, n_majors: 5, n_employers: 5}
train: {tokens: 64_000, batch_tokens: 1_024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d8}
trials:
  - grid: {model.preset: [d8, d12, d16, d20], train.tokens: [64_000, 128_000, 256_000]}
  - set: {model.architecture: memory_plus, model.n_keys: 16}
    grid: {model.preset: [d8, d12, d16, d20], train.tokens: [64_000, 128_000, 256_000]}
seeds: [0, 1]
"""
FURTHER = SWEEP.replace("[d8, d12, d16, d20]", "[d16, d24, d32]").replace("256_000]", "256_000, 1_024_000]")  # fmt: skip
TARGET = "memory_plus: params=1e6, tokens=4e6"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, synthetic):
    """Runs of SWEEP as the trainer leaves them, their losses of a known law."""
    folder = tmp_path_factory.mktemp("next")
    (folder / "tables.yaml").write_text(SWEEP)
    (folder / "further.yaml").write_text(FURTHER)
    for spec in load_sweep(folder / "tables.yaml").trials:
        spec = dataclasses.replace(spec, accounting=account(spec))
        N, D = spec.accounting["active_params"], spec.accounting["training_tokens"]
        noise = np.random.default_rng([spec.seed, int(N), int(D)]).standard_normal()
        gain = 1.0 if spec.architecture == "dense" else 0.8
        loss = (1.0 + gain * 40 / N**0.35 + 300 / D**0.5) * np.exp(0.002 * noise)
        metrics = {"valid/loss": loss, "train/loss": loss, "time/train_s": 1e-5 * D}
        synthetic.write_done(folder / "runs", synthetic.make_trial("dense", 8, 0).__class__(spec, metrics))  # fmt: skip
    (folder / "runs" / "tables" / "sweep.yaml").write_text(SWEEP)
    return folder


def test_the_usual_target_has_the_experts_of_its_architecture():
    law = law_named("routed_joint")
    sizes = (np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 3e10, 4), [1.0, 8.0, 64.0])
    N, D, experts = (v.ravel() for v in np.meshgrid(*sizes))
    runs = {"n_active": N, "tokens": D, "experts": experts}
    truth = np.asarray([law.example[name] for name in law.parameter_names])
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(len(N)))
    runs["loss"] = law.evaluate(runs, truth) * noise
    runs["architecture"] = [f"moe {n:g}" for n in experts]
    laws = fit_families(runs, law=law, n_draws=0, hold_out=False)

    target = default_target(laws)

    assert target.architecture == "moe 64"
    assert dict(target.inputs) == pytest.approx({"n_active": 1e10, "tokens": 3e11, "experts": 64.0})


def memscale(folder, monkeypatch, *words):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MEMSCALE_RUNS", raising=False)
    return CliRunner().invoke(cli.app, list(words), env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def written(trained):
    with pytest.MonkeyPatch.context() as patch:
        done = memscale(trained, patch, "next", "tables", "--candidates", "further.yaml", "--target", TARGET, "--extra-seeds", "0", "--out", "next.yaml")  # fmt: skip
    assert done.exit_code == 0, done.output
    return done.output, trained / "next.yaml"


def test_what_is_written_is_a_sweep_of_new_trials_under_their_own_names(trained, written):
    _, file = written
    chosen = load_sweep(file)

    names = {t.trial_id for t in chosen.trials}
    assert chosen.name == "tables"
    assert names <= {t.trial_id for t in load_sweep(trained / "further.yaml").trials}
    assert not names & {t.trial_id for t in load_sweep(trained / "tables.yaml").trials}
    assert 2 <= len(names) <= 6
    assert not chosen.warnings
    assert chosen.question == "what does a table buy?"
    assert "# Narrows:  loss of memory_plus at params=1e+06, tokens=4e+06\n" in file.read_text()


def test_plan_takes_the_file_and_says_that_all_of_it_is_new(trained, written, monkeypatch):
    done = memscale(trained, monkeypatch, "plan", "next.yaml", "--json")

    assert done.exit_code == 0, done.output
    assert done.output.count('"status": "new"') == done.output.count('"trial_id"') > 0


def test_it_says_what_the_runs_bring(written):
    output, _ = written

    assert "Next runs" in output
    assert "would bring it to [" in output
    assert "±" not in output
    assert "memscale submit next.yaml" in output
    assert "configurations: done already" in output


def test_it_does_not_write_over_a_file(trained, written, monkeypatch):
    done = memscale(trained, monkeypatch, "next", "tables", "--out", "next.yaml")

    assert done.exit_code == 2
    assert "next.yaml: is there already; name another file with --out" in done.output


def test_a_finished_sweep_has_nothing_left_but_further_seeds(trained, monkeypatch):
    done = memscale(trained, monkeypatch, "next", "tables", "--extra-seeds", "0", "--out", "other.yaml")  # fmt: skip

    assert done.exit_code == 2
    assert "24 of 24 configurations: done already" in done.output
    assert not (trained / "other.yaml").exists()


def test_further_seeds_of_what_has_run_are_written_and_taken(trained, monkeypatch):
    """The design: each costs a trial, keeps the sizes, and is the seed after those that are there."""
    done = memscale(trained, monkeypatch, "next", "tables", "--target", "memory_plus: params=2e3, tokens=3e5", "--extra-seeds", "2", "--out", "seeds.yaml")  # fmt: skip
    chosen = load_sweep(trained / "seeds.yaml")
    before = load_sweep(trained / "tables.yaml")

    assert done.exit_code == 0, done.output
    assert {t.seed for t in chosen.trials} <= {2, 3}
    assert chosen.question == "what does a table buy?"
    there = [(t.model, t.train, t.data) for t in before.trials]
    assert all((t.model, t.train, t.data) in there for t in chosen.trials)
    assert not {t.trial_id for t in chosen.trials} & {t.trial_id for t in before.trials}
    assert chosen.name == "tables"
    plan = memscale(trained, monkeypatch, "plan", "seeds.yaml", "--json")
    assert plan.output.count('"status": "new"') == len(chosen.trials) > 0


def test_next_chooses_among_all_that_was_submitted(trained, written, monkeypatch, tmp_path):
    """The last submitted file holds one configuration, the sweep 24."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    one = SWEEP.split("trials:")[0] + "seeds: [0, 1]\n"
    (tmp_path / "runs" / "tables" / "sweep.yaml").write_text(one)

    done = memscale(tmp_path, monkeypatch, "next", "tables", "--target", "memory_plus: params=2e3, tokens=3e5", "--out", "again.yaml")  # fmt: skip

    assert done.exit_code == 0, done.output
    assert "memory_plus" in (tmp_path / "again.yaml").read_text()


def test_what_next_writes_leaves_the_report_its_question(trained, written, monkeypatch, tmp_path):
    shutil.copytree(trained / "runs", tmp_path / "runs")
    shutil.copy(written[1], tmp_path / "runs" / "tables" / "sweep.yaml")

    assert analysis.load(tmp_path / "runs", sweep="tables").question == "what does a table buy?"
    done = memscale(tmp_path, monkeypatch, "next", "tables", "--target", "memory_plus: params=2e3, tokens=3e5", "--out", "again.yaml")  # fmt: skip

    assert done.exit_code == 0, done.output
    assert load_sweep(tmp_path / "again.yaml").question == "what does a table buy?"


def test_without_a_question_the_file_has_none(trained):
    families, candidates = _candidates(trained, trained / "further.yaml")
    found = next_runs(families, candidates, TARGET, n_runs=1, worth=-1.0)

    (text,) = sweep_texts(found, name="tables", file="one.yaml").values()

    assert text.startswith("# Narrows:  loss of memory_plus")


def test_a_target_hardly_known_has_no_number_in_the_file(trained):
    families, candidates = _candidates(trained, trained / "further.yaml")
    found = next_runs(families, candidates, TARGET, n_runs=1, worth=-1.0)

    (text,) = sweep_texts(dataclasses.replace(found, sd=1e3), name="tables", file="one.yaml").values()  # fmt: skip

    assert "of its width now (not known yet)" in text


def _planned(trained, file):
    table = analysis.load(trained / "runs", sweep="tables").table
    plan = make_plan(load_sweep(file), SweepDir(trained / "runs" / "tables").snapshot(), []).trials
    return fit_sweep_laws(table, n_draws=0, hold_out=False), plan


def _candidates(trained, file, change=lambda trial: trial, **columns):
    families, plan = _planned(trained, file)
    table = analysis.load(trained / "runs", sweep="tables").table.assign(**columns)
    return families, candidates_of([change(t) for t in plan], families, table)[0]


def _asking(**resources):
    def change(trial):
        asked = dataclasses.replace(trial.spec.resources, **resources)
        return dataclasses.replace(trial, spec=dataclasses.replace(trial.spec, resources=asked))

    return change


@pytest.mark.parametrize(
    ("resources", "columns", "unit", "devices"),
    [
        ({}, {}, "core-hours", 1),
        ({"gpus": 0, "cpus": 3, "ranks": 2}, {"device/gpus": 1.0}, "core-hours", 6),
        ({"gpus": 2, "cpus": 3}, {}, "GPU-hours", 2),
        ({"gpus": 0.5}, {}, "GPU-hours", 0.5),
        ({"ranks": 2}, {"device/gpus": 1.0}, "GPU-hours", 2),
    ],
)
def test_hours_are_of_gpus_or_of_cores(trained, resources, columns, unit, devices):
    """`auto` is a GPU for each rank where the runs had some."""
    _, candidates = _candidates(trained, trained / "further.yaml", _asking(**resources), **columns)

    one = candidates[0]
    hours = sum(t.runtime.seconds * t.remaining for t in one.trials) / 3600
    assert {c.unit for c in candidates} == {unit}
    assert one.gpu_hours == pytest.approx(devices * hours)


def test_seeds_that_other_versions_have_counted_are_of_one_configuration(trained):
    def of_before(trial):
        numbers = {k: n for k, n in trial.spec.accounting.items() if k != "model_state_bytes"}
        if trial.spec.seed:
            return trial
        return dataclasses.replace(trial, spec=dataclasses.replace(trial.spec, accounting=numbers))

    _, candidates = _candidates(trained, trained / "further.yaml", of_before)

    new = [c for c in candidates if not c.n_seeds_done]
    assert {tuple(t.spec.seed for t in c.trials) for c in new} == {(0, 1)}


def test_candidates_are_named_without_digits_of_an_id(trained):
    _, candidates = _candidates(trained, trained / "further.yaml")

    names = [c.name for c in candidates]
    assert "dense d24 64.5 k tokens" in names
    assert len(set(names)) == len(names)


def test_candidates_of_one_name_are_told_apart_by_what_differs(trained):
    text = FURTHER.replace("train.tokens: [64", "train.lr: [0.02, 0.03], train.tokens: [64")
    (trained / "rates.yaml").write_text(text)

    _, candidates = _candidates(trained, trained / "rates.yaml")

    names = [c.name for c in candidates]
    assert "dense d24 64.5 k tokens (lr=2e-2)" in names
    assert "dense d24 64.5 k tokens (lr=3e-2)" in names
    assert len(set(names)) == len(names)


def test_where_much_differs_the_beginning_of_the_id_tells_candidates_apart(trained):
    families, plan = _planned(trained, trained / "further.yaml")
    first = next(t for t in plan if t.spec.preset == "d24")
    spec, offered = first.spec, [first]
    for changed in ("lr", "beta1", "beta2", "weight_decay"):
        own = dataclasses.replace(spec, train={**spec.train, changed: 0.5})
        offered.append(dataclasses.replace(first, spec=own))
    table = analysis.load(trained / "runs", sweep="tables").table

    candidates, _ = candidates_of(offered, families, table)

    starts = [t.spec.trial_id[: len("dense-") + 6] for t in offered]
    assert len(set(starts)) == 5
    assert [c.name for c in candidates] == [f"dense d24 64.5 k tokens ({s})" for s in starts]


def test_runs_with_other_seeds_go_into_one_file_each_with_its_own(trained):
    """A seed of a finished configuration and both seeds of a new one, side by side."""
    table = analysis.load(trained / "runs", sweep="tables").table
    plan = make_plan(load_sweep(trained / "further.yaml"), SweepDir(trained / "runs" / "tables").snapshot(), []).trials  # fmt: skip
    families = fit_sweep_laws(table, n_draws=0, hold_out=False)
    candidates, _ = candidates_of(plan, families, table)
    new = next(c for c in candidates if c.n_seeds_done == 0)
    more = next(c for c in candidates if c.n_seeds_done == 2)

    found = next_runs(families, [new, more], LossAt(architecture="memory_plus", inputs={"params": 3e3, "tokens": 4e5}), n_runs=2, worth=-1.0)  # fmt: skip
    texts = sweep_texts(found, name="tables", file="both.yaml")
    both = trained / "both.yaml"
    both.write_text(joined([Source(file=both, text=t, label=label) for label, t in texts.items()]))

    wanted = {t.spec.trial_id for r in found.chosen for t in r.candidate.trials}
    assert len(wanted) == 3
    assert {t.trial_id for t in load_sweep(trained / "both.yaml").trials} == wanted


def test_what_a_second_seed_brings_cannot_be_told_without_one(trained):
    table = analysis.load(trained / "runs", sweep="tables").table.query("seed == 0")
    plan = make_plan(load_sweep(trained / "tables.yaml"), SweepDir(trained / "runs" / "tables").snapshot(), []).trials  # fmt: skip
    families = fit_sweep_laws(table, n_draws=0, hold_out=False)

    candidates, notes = candidates_of([t for t in plan if t.spec.seed == 0], families, table)

    assert candidates == []
    assert notes == ["24 of 24 configurations: done already, and what a second seed would bring cannot be told: no configuration has two"]  # fmt: skip


def test_a_ladder_is_fitted_in_flops(two_architectures):
    ladder = two_architectures(noise=0.002).query("tokens / params < 6 and tokens / params > 4")

    families = fit_sweep_laws(ladder, n_draws=0, hold_out=False)

    assert families.columns == {"x": "training_flops"}
    assert families.named("dense").fit.law.name == "power"


def test_tokens_that_match_solved_for_are_no_axis_of_a_law(two_architectures):
    """An architecture whose steps cost more trains for fewer: no law of tokens follows from it."""
    table = two_architectures(noise=0.002)
    table = table.drop_duplicates(["architecture", "params"]).assign(tokens=1e9)
    solved = table["architecture"] != "dense"
    table["tokens"] = table["tokens"].where(~solved, 9e8 + 1e5 * table["params"].rank())
    table["training_flops"] = 6 * table["params"] * table["tokens"]
    table["match.solve"] = solved.map({True: "tokens", False: None})
    table["match.training_flops"] = solved.map({True: "dense", False: None})

    families = fit_sweep_laws(table, n_draws=0, hold_out=False)

    assert families.columns == {"x": "training_flops"}
    assert families.named("dense").fit.law.name == "power"
    with_lengths = pd.concat([table, table.assign(tokens=2 * table["tokens"])])
    assert _law_for(with_lengths)[0].name == "chinchilla"
    isoflop = pd.concat(
        table.assign(
            **{"match.solve": "tokens", "match.training_flops": f"{budget:g}"},
            tokens=budget / 6 / table["params"],
        )
        for budget in (1e15, 4e15)
    )
    assert _law_for(isoflop)[0].name == "chinchilla"
    with_one = pd.concat([isoflop, table[~solved].head(1)])
    assert _law_for(with_one)[0].name == "chinchilla"


def test_a_target_that_cannot_be_read_is_one_sentence(trained, monkeypatch):
    done = memscale(trained, monkeypatch, "next", "tables", "--candidates", "further.yaml", "--target", "x", "--out", "other.yaml")  # fmt: skip

    assert done.exit_code == 2
    assert done.output.startswith("target: cannot read 'x'; write an architecture")


RATES = """name: rates
data: {source: biographies, style: compact, n_people: 60, n_first_names: 10, n_middle_names: 10, n_last_names: 10, n_years: 5, n_cities: 5, n_universities: 5, n_majors: 5, n_employers: 5}
train: {tokens: 64_000, batch_tokens: 1_024, seq_len: 64}
model: {architecture: dense, preset: d8}
trials:
  - grid: {model.preset: [d8, d12, d16, d20, d24, d32], train.lr: [1.0e-2, 3.0e-2]}
  - set: {model.architecture: memory_plus, model.n_keys: 16}
    grid: {model.preset: [d8, d12, d16, d20, d24, d32], train.lr: [1.0e-2, 3.0e-2]}
seeds: [0, 1]
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, synthetic):
    """Two rates at six sizes: 3e-2 is best, but for d32, where 1e-2 is; dense gains more by it."""
    folder = tmp_path_factory.mktemp("rates")
    (folder / "rates.yaml").write_text(RATES)
    (folder / "larger.yaml").write_text(RATES.replace("[d8, d12, d16, d20, d24, d32]", "[d48]").replace("[1.0e-2,", "[1.0e-2, 9.0e-2,"))  # fmt: skip
    for spec in load_sweep(folder / "rates.yaml").trials:
        spec = dataclasses.replace(spec, accounting=account(spec))
        N, dense = spec.accounting["active_params"], spec.architecture == "dense"
        noise = np.random.default_rng([spec.seed, int(N), dense]).standard_normal()
        loss = (1.0 + (40 if dense else 36) / N**0.35) * np.exp(0.002 * noise)
        wrong = (spec.train["lr"] == 1e-2) != (spec.preset == "d32")
        loss *= 1 + wrong * (0.05 if dense else 0.3)
        metrics = {"valid/loss": loss, "train/loss": loss, "time/train_s": 1e-3 * N}
        synthetic.write_done(folder / "runs", synthetic.make_trial("dense", 8, 0).__class__(spec, metrics))  # fmt: skip
    return folder


def test_next_and_report_propose_the_same(tuned):
    runs = analysis.load(tuned / "runs", sweep="rates")
    trials = recorded(SweepDir(tuned / "runs" / "rates"), [])
    fits = analysis.fit_sweep(runs, n_draws=5, specs=())

    by_report = compare_architectures(runs, fits, trials=trials).design
    by_next = propose(runs.table, trials)

    assert by_next.sentence == by_report.sentence
    assert by_next.target_words.startswith("loss of memory_plus")
    assert [r.candidate.name for r in by_next.chosen] == [r.candidate.name for r in by_report.chosen]  # fmt: skip
    assert len(by_next.laws.named("dense").fit.y) == 12, "the best rate of every size"


def test_settings_that_were_worse_at_the_nearest_size_are_no_candidates(tuned):
    table = analysis.load(tuned / "runs", sweep="rates").table
    done = SweepDir(tuned / "runs" / "rates").snapshot()
    plan = [t for f in ("larger", "rates") for t in make_plan(load_sweep(tuned / f"{f}.yaml"), done, []).trials]  # fmt: skip
    families = fit_sweep_laws(best_rows(table), n_draws=0, hold_out=False)

    candidates, notes = candidates_of(plan, families, table)

    rates = {(c.trials[0].spec.preset, c.trials[0].spec.train["lr"]) for c in candidates}
    smaller = {(preset, 3e-2) for preset in ("d8", "d12", "d16", "d20", "d24")}
    assert rates == {*smaller, ("d32", 1e-2), ("d48", 1e-2), ("d48", 9e-2)}, (
        "of 9e-2 nothing is known"
    )
    assert notes == ["14 of 30 configurations: train.lr worse than another at the nearest size"]


def test_training_lengths_are_never_chosen_between(trained):
    """Laws need all of them, and the longest would always be best."""
    runs = analysis.load(trained / "runs", sweep="tables")

    assert len(best_rows(runs.table)) == len(runs.table) == 48
    assert not analysis.fit_sweep(runs, n_draws=0, specs=()).best


def test_lengths_are_kept_where_a_rate_changes_with_them(trained):
    table = analysis.load(trained / "runs", sweep="tables").table
    table = table.assign(**{"train.lr": 1e4 / table["train.tokens"]})

    assert len(best_rows(table)) == len(table) == 48


def test_a_rate_that_a_table_never_had_is_not_called_worse(tuned):
    """1e-2 was worse with 16 keys, and nobody tried it with 64."""
    table = analysis.load(tuned / "runs", sweep="rates").table
    larger = table[(table["architecture"] == "memory_plus") & (table["train.lr"] == 3e-2)]
    larger = larger.assign(
        configuration=larger["configuration"] + " 64",
        **{"model.n_keys": 64, "total_params": larger["total_params"] + 10.0},
    )
    done = SweepDir(tuned / "runs" / "rates").snapshot()
    plan = make_plan(load_sweep(tuned / "rates.yaml"), done, []).trials
    specs = [
        dataclasses.replace(t.spec, model={**t.spec.model, "n_keys": 64})
        for t in plan
        if t.spec.architecture == "memory_plus"
    ]

    why = _worse_settings(pd.concat([table, larger], ignore_index=True))

    assert {why(spec) for spec in specs if spec.train["lr"] == 1e-2} == {None}


def test_candidates_on_other_data_are_none(trained, monkeypatch):
    text = FURTHER.replace("n_people: 60", "n_people: 61")
    (trained / "people.yaml").write_text(text)

    done = memscale(trained, monkeypatch, "next", "tables", "--candidates", "people.yaml", "--out", "other.yaml")  # fmt: skip

    assert done.exit_code == 2
    assert "another data.n_people than the runs" in done.output

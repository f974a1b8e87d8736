import dataclasses
import importlib
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.cli.render.plan import plan_tables
from orchestrator.control import node_exclusion
from orchestrator.planning.pricing import RATES, PlannedTrial, account, make_plan, why_new
from orchestrator.planning.runtime_prior import Measurement, RuntimePrediction
from orchestrator.records.code_digest import ARCHITECTURES
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec
from orchestrator.simulation import cluster_spec
from orchestrator.simulation.planned_trials import waiting_trials
from orchestrator.simulation.simulate import simulate
from orchestrator.submit.submission import Submission
from orchestrator.sweep.load import load_sweep
from workloads.architectures import dense

SWEEP = """
name: small
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2, value_lr_ratio: 4.0}
model: {architecture: dense, preset: d16}
trials:
  - grid: {model.preset: [d16]}
  - set: {model.architecture: memory_plus, model.n_keys: 16}
    match: {training_flops: dense}
seeds: [0, 1]
"""
MEASURED = [Measurement(architecture="dense", device="cpu", flops_per_token=1e5, s_per_token=1e-5)]


@pytest.fixture
def loaded(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return load_sweep(file)


@pytest.fixture
def sweep(tmp_path):
    return SweepDir(tmp_path / "runs" / "small")


def test_flops_of_a_block_are_counted_as_the_paper_counts_where_it_counts_them(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: s\ndata: {source: biographies, n_people: 8}\n"
        "train: {tokens: 4096, batch_tokens: 2048, seq_len: 2048, lr: 1.0e-3}\n"
        "model: {architecture: pythia, preset: 70m}\ntrials:\n"
        "  - set: {model.architecture: pythia}\n"
        "  - set: {model.architecture: memoryformer, model.preset: tiny}\n"
        "  - set: {model.architecture: dense, model.preset: d8}\n"
    )
    found = [account(spec).get("paper_block_flops") for spec in load_sweep(file).trials]

    # Table 1, tiny: G FLOPs of a block.
    assert [None if n is None else round(n / 1e9, 1) for n in found] == [10.7, 4.7, None]


def test_every_trial_is_priced_and_groups_add_up(loaded, sweep):
    plan = make_plan(loaded, sweep.snapshot(), MEASURED)

    for trial in plan.trials:
        numbers = trial.spec.accounting
        groups = sum(v for k, v in numbers.items() if k.startswith("params_"))
        assert groups == numbers["total_params"]
        assert (
            numbers["non_embedding_params"]
            == groups - numbers["params_embedding"] - numbers["params_head"]
        )
        assert numbers["training_flops"] == pytest.approx(
            3 * numbers["forward_flops_per_token"] * 8192
        )
        assert numbers["memory_params"] == (
            numbers["params_memory_keys"] + numbers["params_memory_values"]
        )
        assert numbers["peak_memory_bytes"] > 16 * groups
        assert 0 < numbers["activation_bytes"] < numbers["peak_memory_bytes"]
        alone, together = (numbers[f"bytes_read_per_token{b}"] for b in ("", "_batch64"))
        assert alone / 64 < together < alone
        assert trial.runtime.seconds > 0
    assert {t.status for t in plan.trials} == {"new"}


@pytest.mark.parametrize(("gpus", "spared"), [(1, True), (0, False)])
def test_tables_on_the_host_take_no_memory_of_a_gpu(tmp_path, gpus, spared):
    peaks = []
    for place in ("device", "host"):
        file = tmp_path / f"{place}.yaml"
        text = SWEEP.replace("lr:", "table_optimizer: lazy_adamw, lr:")
        file.write_text(f"{text}resources: {{gpus: {gpus}, memory_tables: {place}}}\n", "utf-8")
        plan = make_plan(load_sweep(file), SweepDir(tmp_path / place).snapshot(), MEASURED)
        peaks.append([t.spec.accounting["peak_memory_bytes"] for t in plan.trials])

    (dense, memory), (dense_on_host, memory_on_host) = (sorted(set(p)) for p in peaks)
    assert dense == dense_on_host
    assert (memory_on_host < memory) is spared


def test_the_peak_knows_how_tables_are_updated_and_shared_out(loaded):
    spec = next(t for t in loaded.trials if t.architecture == "memory_plus")
    spec = dataclasses.replace(spec, model={**spec.model, "n_keys": 64})
    two = dataclasses.replace(spec, resources=Resources(ranks=2))
    halves = dataclasses.replace(spec, resources=Resources(ranks=2, memory_ranks=2))
    fields = {"table_optimizer": "sgd", "table_precision": "bf16"}
    sgd = dataclasses.replace(two, train={**spec.train, **fields})

    def held(priced: TrialSpec) -> float:
        numbers = account(priced)
        return numbers["peak_memory_bytes"] - 1.2 * numbers["activation_bytes"]

    values = account(spec)["params_memory_values"]
    assert held(two) - held(halves) == pytest.approx(16 * values / 2)
    # What waits for the update is a batch of reads.
    assert held(two) - 14 * values < held(sgd) < held(two) - 12 * values


def test_the_peak_knows_that_dense_parameters_are_sharded(loaded):
    spec = next(t for t in loaded.trials if t.architecture == "memory_plus")
    whole, shared, alone = (
        account(dataclasses.replace(spec, resources=Resources(ranks=ranks, dense_parameters=dense)))
        for ranks, dense in ((4, "replicated"), (4, "sharded"), (1, "sharded"))
    )

    dense = whole["total_params"] - whole["params_memory_values"]
    n_layers = spec.model["n_layers"]
    outside = whole["params_embedding"] + whole["params_head"]
    gathered = 8 * outside + 16 * (dense - outside) / n_layers
    saved = whole["peak_memory_bytes"] - shared["peak_memory_bytes"]
    assert saved == pytest.approx(12 * dense - gathered, abs=100)
    of_one = dataclasses.replace(spec, resources=Resources())
    assert alone["peak_memory_bytes"] == account(of_one)["peak_memory_bytes"]


def test_every_number_is_explained(loaded, sweep):
    page = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
    _, _, accounting = page.partition("## Accounting")

    for name in make_plan(loaded, sweep.snapshot(), MEASURED).trials[0].spec.accounting:
        assert f"`{name}`" in accounting.partition("\n## ")[0]


def test_pricing_does_not_change_what_a_trial_is_called(loaded, sweep):
    plan = make_plan(loaded, sweep.snapshot(), MEASURED)

    assert [t.spec.trial_id for t in plan.trials] == [t.trial_id for t in loaded.trials]


def test_an_identity_is_written_once_for_all_seeds(tmp_path, sweep, monkeypatch):
    """Ten thousand trials wait for their first start while identities are hashed."""
    hashed = []
    ids = TrialSpec._ids
    monkeypatch.setattr(TrialSpec, "_ids", lambda spec, seeds: hashed.append(1) or ids(spec, seeds))

    file = tmp_path / "small.yaml"
    file.write_text(SWEEP.replace("[0, 1]", "[0, 1, 2, 3, 4, 5, 6, 7]"), encoding="utf-8")
    loaded = load_sweep(file)
    before = len(hashed)
    planned = make_plan(loaded, sweep.snapshot(), MEASURED)

    configurations = {trial.spec.configuration_id for trial in planned.trials}
    assert len(planned.trials) == 8 * len(configurations)
    assert len(hashed) == before <= 3 * len(configurations)


def test_matched_trials_cost_the_same(loaded, sweep):
    flops = {
        t.spec.architecture: t.spec.accounting["training_flops"]
        for t in make_plan(loaded, sweep.snapshot(), MEASURED).trials
    }

    assert flops["memory_plus"] == pytest.approx(flops["dense"], rel=0.01)


def test_done_resumable_failed_and_cancelled_trials_are_told_apart(loaded, sweep):
    first, second, third, fourth = (
        make_plan(loaded, sweep.snapshot(), MEASURED).trials[i].spec for i in range(4)
    )
    for spec in (first, second, third):
        sweep.trial(spec.trial_id).create(spec)
    write_json(sweep.trial(first.trial_id).path / "result.json", {"metrics": {}})
    stopped = sweep.trial(second.trial_id)
    write_json(stopped.path / "heartbeat.json", {"step": 6, "steps": 8})
    (stopped.checkpoints / "step-00000004").mkdir(parents=True)
    write_json(
        stopped.new_attempt({"why": "first attempt"}).path / "end.json",
        {"outcome": "interrupted", "reason": "stopped on request", "final": False},
    )
    failed = sweep.trial(third.trial_id)
    write_json(
        failed.new_attempt({"why": "first attempt"}).path / "end.json",
        {"outcome": "user_error", "reason": "ValueError: no", "final": True},
    )

    plan = make_plan(loaded, sweep.snapshot(), MEASURED)

    assert [t.status for t in plan.trials] == ["done", "resume", "retry", "new"]
    assert plan.trials[1].remaining == pytest.approx(0.5), (
        "steps after the last checkpoint are lost"
    )
    assert "ValueError: no" in plan.trials[2].why
    assert not plan.trials[0].to_train
    assert fourth.trial_id not in plan.left_over


def test_what_other_sweeps_of_the_folder_have_trained_is_noted(loaded, sweep):
    twin, begun = (SweepDir(sweep.path.parent / name) for name in ("twin", "begun"))
    for spec in loaded.trials[:3]:
        begun.trial(spec.trial_id).create(spec)
        twin.trial(spec.trial_id).create(spec)
        write_json(twin.trial(spec.trial_id).path / "result.json", {"metrics": {}})

    (sweep.path.parent / "notes").mkdir()
    (sweep.path.parent / "notes" / "trials").touch()  # a file of that name is no sweep

    def notes():
        return [n for n in make_plan(loaded, sweep.snapshot(), MEASURED).notes if "anew" in n]

    assert notes() == [
        "3 of the 4 trials to train are done in the sweep twin; this sweep trains them anew"
    ]
    for spec in loaded.trials[:0:-1]:
        sweep.trial(spec.trial_id).create(spec)
        write_json(sweep.trial(spec.trial_id).path / "result.json", {"metrics": {}})
    assert notes() == [
        "1 of the 1 trial to train is done in the sweep twin; this sweep trains it anew"
    ]
    sweep.trial(loaded.trials[0].trial_id).create(loaded.trials[0])
    write_json(sweep.trial(loaded.trials[0].trial_id).path / "result.json", {"metrics": {}})
    assert notes() == []


def finish(folder, specs, *, code):
    """Let the first submission of a sweep, with this code of the architecture dense, train some."""
    copy = folder.path / "code" / "0123" / ARCHITECTURES / "dense.py"
    copy.parent.mkdir(parents=True)
    copy.write_text(code)
    (folder.path / "trials").mkdir()
    number = folder.add_submission({"trial_ids": [], "run": {"code": str(copy.parents[2])}})
    for spec in specs:
        trial = folder.trial(spec.trial_id)
        trial.create(spec)
        attempt = trial.new_attempt({"submission": number, "why": "first attempt"})
        write_json(attempt.path / "end.json", {"outcome": "done", "reason": "", "final": True})
        write_json(trial.path / "result.json", {"attempt": 1, "metrics": {}})


def test_done_trials_keep_the_counts_of_what_was_trained(loaded, sweep):
    specs = [t.spec for t in make_plan(loaded, sweep.snapshot(), MEASURED).trials]
    counts = {**specs[0].accounting, "total_params": 6144.0}
    del counts["vocab_size"]  # an earlier version did not count it
    finish(sweep, [specs[0].with_accounting(counts)], code=Path(dense.__file__).read_text())

    plan = make_plan(loaded, sweep.snapshot(), MEASURED)
    sweep.add_trials(trial.spec for trial in plan.trials)

    assert [t.status for t in plan.trials] == ["done", "new", "new", "new"]
    assert sweep.trial(specs[0].trial_id).spec().accounting == {**specs[0].accounting, **counts}
    assert plan.trials[1].spec.accounting == specs[1].accounting
    (told,) = plan.code_notes
    now = specs[0].accounting["total_params"]
    assert told in plan.notes
    assert told == (
        "dense: 1 of its finished trials keeps counts of other code (total_params of "
        f"{specs[0].trial_id}: 6,144, now {now:,.0f}); new seeds beside them get today's; rename "
        "the sweep to train all anew, or delete their folders"
    )


@pytest.mark.parametrize("name", ["active_params", "training_flops", "peak_memory_bytes"])
def test_finished_trials_that_keep_other_counts_are_told(loaded, sweep, name):
    """Of sizes and costs that curves are drawn over; the code that all architectures share counts them."""
    specs = [t.spec for t in make_plan(loaded, sweep.snapshot(), MEASURED).trials]
    old = [s.with_accounting({**s.accounting, name: 0.8 * s.accounting[name]}) for s in specs[:2]]
    finish(sweep, [*old, specs[2]], code=Path(dense.__file__).read_text())

    notes = make_plan(loaded, sweep.snapshot(), MEASURED).code_notes

    told = [f"dense: 2 of its finished trials keep counts of other code ({name} of"]
    assert [note[: len(told[0])] for note in notes] == ([] if name == "peak_memory_bytes" else told)


def test_other_code_is_told_of_this_sweep_and_of_others(loaded, sweep):
    twin = SweepDir(sweep.path.parent / "twin")
    finish(sweep, loaded.trials[:1], code="WIDTH = 4")
    finish(twin, loaded.trials[1:2], code="WIDTH = 4")

    plan = make_plan(loaded, sweep.snapshot(), MEASURED)

    (told,) = plan.code_notes
    assert told in plan.notes
    assert told.startswith("dense: workloads/architectures/dense.py changed since 1 of its trials")
    assert (
        "1 of the 3 trials to train is done in the sweep twin (1 by other code of "
        "workloads/architectures/dense.py); this sweep trains it anew"
    ) in plan.notes


def test_submit_says_that_code_changed(loaded, sweep, monkeypatch):
    finish(sweep, loaded.trials[:2], code="WIDTH = 4")
    submit = importlib.import_module("orchestrator.cli.submit")
    monkeypatch.setattr(submit, "_run", lambda request, **how: None)

    said = CliRunner().invoke(
        app, ["submit", str(loaded.files[0]), "--runs", str(sweep.path.parent)]
    )

    assert said.output.startswith("note: dense: workloads/architectures/dense.py changed since 2")


def test_a_new_trial_says_what_changed(loaded, sweep):
    old = make_plan(loaded, sweep.snapshot(), MEASURED).trials[0].spec
    changed = dataclasses.replace(old, train={**old.train, "lr": 0.003}, seed=7)

    assert why_new(changed, [old]) == "seed 0 → 7, train.lr 0.01 → 0.003"
    assert why_new(old, []) == "nothing was submitted under this name yet"


def test_trials_that_left_the_file_are_kept_and_named(loaded, sweep):
    gone = dataclasses.replace(
        make_plan(loaded, sweep.snapshot(), MEASURED).trials[0].spec, seed=99
    )
    sweep.trial(gone.trial_id).create(gone)

    plan = make_plan(loaded, sweep.snapshot(), MEASURED)
    assert plan.left_over == (gone.trial_id,)
    assert plan.left_over_notes == (
        "not in this file: 1 trial of earlier submissions: "
        "1 not done, which train once a file asks for them again",
    )


def test_only_done_trials_that_left_the_file_count_as_seeds(loaded, sweep):
    one_seed = "one seed: a difference cannot be told from chance"
    planned = make_plan(loaded, sweep.snapshot(), MEASURED)
    single = dataclasses.replace(
        loaded, trials=tuple(trial for trial in loaded.trials if trial.seed == 0)
    )
    others = [dataclasses.replace(t.spec, seed=t.spec.seed + 7) for t in planned.trials]
    for spec in others:
        sweep.trial(spec.trial_id).create(spec)
    waiting = make_plan(single, sweep.snapshot(), MEASURED)
    for spec in others:
        write_json(sweep.trial(spec.trial_id).path / "result.json", {"attempt": 1, "metrics": {}})
    done = make_plan(single, sweep.snapshot(), MEASURED)

    assert any(note.startswith(one_seed) for note in waiting.notes)
    assert not any(note.startswith(one_seed) for note in done.notes)
    assert done.left_over_notes[0].endswith(f"{len(others)} done, which fits and reports count")


def test_predicted_wall_time_fills_the_slots_longest_first(loaded, sweep):
    plan = make_plan(loaded, sweep.snapshot(), MEASURED)
    alone = sum(t.runtime.seconds for t in plan.trials)

    assert plan.predicted_s(slots=1) == pytest.approx(alone)
    assert alone / 2 <= plan.predicted_s(slots=2) <= alone


def test_a_recipe_is_the_first_thing_that_changed(loaded, sweep):
    old = make_plan(loaded, sweep.snapshot(), MEASURED).trials[0].spec
    changed = dataclasses.replace(old, train={**old.train, "lr": 0.003}, recipe="pythia_70m")

    assert why_new(changed, [old]) == ("train.recipe unset → pythia_70m, train.lr 0.01 → 0.003")
    assert why_new(dataclasses.replace(changed, seed=1), [changed]) == "seed 0 → 1"


def test_an_architecture_that_looks_ahead_is_noted_once(loaded, sweep):
    ahead = "in training: experts choose among all tokens of the batch"
    trials = tuple(
        dataclasses.replace(trial, not_causal=ahead if trial.architecture == "dense" else None)
        for trial in loaded.trials
    )

    assert make_plan(loaded, sweep.snapshot(), MEASURED).notes == ()
    sweep.path.mkdir(parents=True, exist_ok=True)
    node_exclusion.exclude(sweep, "n1", why="3 trials failed there", submission=1, now=5.0)
    (note,) = make_plan(loaded, sweep.snapshot(), MEASURED).notes
    assert note.startswith("node n1 is left out: 3 trials failed there; delete ")
    node_exclusion.readmit_all(sweep.excluded_nodes())
    assert make_plan(
        dataclasses.replace(loaded, trials=trials), sweep.snapshot(), MEASURED
    ).notes == ("dense: not causal in training: experts choose among all tokens of the batch",)


def test_gpus_that_no_rank_would_use_are_noted_once(loaded, sweep):
    counts = [Resources(ranks=3, gpus=4), *[Resources(ranks=2, gpus=n) for n in (0.5, 2, "auto")]]
    trials = tuple(
        dataclasses.replace(trial, resources=resources)
        for trial, resources in zip(loaded.trials, counts, strict=True)
    )

    plan = make_plan(dataclasses.replace(loaded, trials=trials), sweep.snapshot(), MEASURED)

    assert plan.notes == (
        "resources.gpus is 4 and resources.ranks 3: a rank computes on one GPU, so 1 GPU of a "
        "trial would idle; set ranks to 4, or gpus to 3",
    )


def test_trials_that_differ_in_their_shards_only_are_priced_apart(loaded, sweep):
    """289 rows of 16 columns: half of the rows are 145, half of the columns 8."""
    spec = next(t for t in loaded.trials if t.architecture == "memory_plus")
    spec = dataclasses.replace(spec, model={**spec.model, "n_keys": 17})
    by_columns, by_rows = (
        dataclasses.replace(
            spec,
            seed=seed,
            resources=Resources(ranks=2, memory_ranks=2, memory_layout=layout),
        )
        for seed, layout in enumerate(("columns", "rows"))
    )

    planned = make_plan(
        dataclasses.replace(loaded, trials=(by_columns, by_rows)), sweep.snapshot(), MEASURED
    ).trials

    peaks = [t.spec.accounting["peak_memory_bytes"] for t in planned]
    assert peaks == [account(s)["peak_memory_bytes"] for s in (by_columns, by_rows)]
    assert len(set(peaks)) == 2


def test_no_price_depends_on_the_rates_by_which_trials_share_one(loaded):
    changed = {"lr": 0.5, "warmup_fraction": 0.25, "decay_fraction": 0.125, "eps": 1e-3}
    changed |= {"final_lr_fraction": 0.75, "weight_decay": 0.0}
    assert changed.keys() == RATES
    for spec in loaded.trials:
        price = account(spec, on_gpu=True, gpu_bytes=1e9)
        for name, value in changed.items():
            assert spec.train[name] != value, name
            other = dataclasses.replace(spec, train={**spec.train, name: value})
            assert account(other, on_gpu=True, gpu_bytes=1e9) == price, name


def test_trials_that_differ_in_other_settings_of_training_are_priced_apart(loaded, sweep):
    spec = loaded.trials[0]
    twice = dataclasses.replace(spec, train={**spec.train, "tokens": 2 * spec.train["tokens"]})
    faster = dataclasses.replace(twice, train={**twice.train, "lr": 0.5})
    asked = dataclasses.replace(loaded, trials=(spec, twice, faster))

    flops = [
        trial.spec.accounting["training_flops"]
        for trial in make_plan(asked, sweep.snapshot(), MEASURED).trials
    ]

    assert flops == [flops[0], 2 * flops[0], 2 * flops[0]]


def test_the_longest_trial_starts_first(loaded, sweep):
    """Of 1, 1 and 2 hours on two slots the last to start must not be the longest."""
    plan = make_plan(loaded, sweep.snapshot(), MEASURED)
    trials = [
        dataclasses.replace(t, runtime=dataclasses.replace(t.runtime, seconds=seconds))
        for t, seconds in zip(plan.trials, (3600.0, 3600.0, 7200.0), strict=False)
    ]

    assert dataclasses.replace(plan, trials=tuple(trials)).predicted_s(slots=2) == 7200


def test_guesses_alone_widen_the_predicted_wall_time(loaded, sweep):
    plan = make_plan(loaded, sweep.snapshot(), MEASURED)
    first, *others = plan.trials
    guess = RuntimePrediction(seconds=3600.0, source="guess", factors=(0.5, 4.0))
    known = RuntimePrediction(seconds=3600.0, source="measured")
    trials = [dataclasses.replace(first, runtime=guess)]
    trials += [dataclasses.replace(t, runtime=known) for t in others]
    plan = dataclasses.replace(plan, trials=tuple(trials))

    rest = 3600 * len(others)
    assert plan.predicted_range_s(slots=1) == (1800 + rest, 4 * 3600 + rest)
    slots = len(plan.trials)
    assert plan.predicted_range_s(slots=slots) == (3600, 4 * 3600)
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_tables(plan, slots=slots))
    shown = console.file.getvalue()
    assert f"about 1 h 00 min with {slots} at a time" in shown
    assert "a guess, between 1 h 00 min and 4 h 00 min; measured after the first run" in shown


def test_what_cannot_be_fitted_is_noted_until_it_is_trained(tmp_path):
    file = tmp_path / "three.yaml"
    file.write_text(SWEEP.replace("[d16]", "[d8, d12, d16]"), encoding="utf-8")
    folder = SweepDir(tmp_path / "runs" / "small")
    plan = make_plan(load_sweep(file), folder.snapshot(), MEASURED)

    assert plan.notes[0].startswith("memory_plus: 1 size, too few")
    assert plan.notes[1].startswith("dense: 3 sizes")
    for trial in plan.trials:
        trial_folder = folder.trial(trial.spec.trial_id)
        trial_folder.create(trial.spec)
        write_json(trial_folder.path / "result.json", {"metrics": {}})
    assert make_plan(load_sweep(file), folder.snapshot(), MEASURED).notes == ()


def test_trials_that_cannot_be_read_are_left_alone_and_the_others_planned(loaded, sweep):
    asked = make_plan(loaded, sweep.snapshot(), MEASURED).trials[0].spec
    for spec in (asked, dataclasses.replace(asked, seed=99)):
        sweep.trial(spec.trial_id).create(spec)
        path = sweep.trial(spec.trial_id).path / "spec.json"
        write_json(path, {**spec.to_json(), "colour": "red"})

    plan = make_plan(loaded, sweep.snapshot(), MEASURED)

    assert [t.status for t in plan.trials] == ["unreadable", "new", "new", "new"]
    assert "unknown field colour" in plan.trials[0].why
    assert [t.to_train for t in plan.trials] == [False, True, True, True]
    (note,) = (note for note in plan.notes if "unknown field colour" in note)
    assert note.endswith("this trial, which the file does not ask for, is set aside")
    assert plan.left_over == ()
    before = {path: path.read_bytes() for path in sweep.path.rglob("spec.json")}
    Submission(plan=plan, runs=sweep.path.parent).write_records(sweep)
    assert {path: path.read_bytes() for path in before} == before
    assert sweep.submissions()[0]["trial_ids"] == [t.spec.trial_id for t in plan.trials]


def large(precision="auto", **resources):
    """Dense 8b on eight ranks."""
    return TrialSpec(
        sweep="large",
        preset="8b",
        seed=0,
        data={"source": "biographies", "n_people": 20},
        model={"architecture": "dense", **dense.PRESETS["8b"]},
        train={
            "tokens": 2**20,
            "batch_tokens": 2**20,
            "seq_len": 4096,
            "lr": 1e-3,
            "precision": precision,
        },
        resources=Resources(ranks=8, dense_parameters="sharded", **resources),
    )


@pytest.mark.parametrize(("on_gpu", "precision"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_priced_as_the_device_computes(on_gpu, precision):
    asked = account(large(precision), on_gpu=on_gpu)

    assert account(large(), on_gpu=on_gpu) == asked
    assert account(large("fp32"), on_gpu=True) == account(large("fp32"))


def test_8b_takes_passes_that_fit_the_gpus_and_is_placed_there():
    cluster = cluster_spec.parse("nodes=1,gpus_per_node=8,gpu_memory=80GB")
    whole = account(large(), on_gpu=True)["peak_memory_bytes"]
    trials = [
        PlannedTrial(
            spec=dataclasses.replace(
                large(), accounting=account(large(), on_gpu=True, gpu_bytes=gpu_bytes)
            ),
            status="new",
            why="",
            runtime=RuntimePrediction(seconds=1.0, source="guess"),
        )
        for gpu_bytes in (None, 80e9)
    ]
    fits = []
    for trial in trials:
        plan = SimpleNamespace(trials=[trial], sweep=SimpleNamespace(name="large"))
        fits.append(not simulate(cluster.nodes, waiting_trials(plan, cluster)).impossible)

    assert whole > 8 * 80e9
    assert trials[1].spec.accounting["peak_memory_bytes"] < 80e9
    assert fits == [False, True]


def test_what_is_asked_for_is_priced_as_asked():
    one = account(large(micro_batch_tokens=4096), on_gpu=True)
    again = account(
        large(micro_batch_tokens=4096, activation_checkpointing=True), on_gpu=True, gpu_bytes=1e15
    )

    assert again["activation_bytes"] < one["activation_bytes"] / 3
    assert account(large(micro_batch_tokens=4096), on_gpu=True, gpu_bytes=1e15) == one


def test_the_rank_with_the_largest_share_is_priced():
    alone, of_three = (
        account(dataclasses.replace(large(), resources=Resources(ranks=ranks)))["activation_bytes"]
        for ranks in (1, 3)
    )

    assert of_three / alone == pytest.approx(-(-(2**20) // 3) / 2**20, rel=1e-9)


def test_one_new_seed_is_one_reason(loaded, sweep):
    old = make_plan(loaded, sweep.snapshot(), MEASURED).trials[0].spec
    known = [dataclasses.replace(old, seed=seed) for seed in (2, 0, 1)]

    assert why_new(dataclasses.replace(old, seed=3), known) == "seed 0 → 3"


def test_a_trial_that_never_started_waits(loaded, sweep):
    spec = loaded.trials[0]
    sweep.trial(spec.trial_id).create(spec)

    trial = make_plan(loaded, sweep.snapshot(), MEASURED).trials[0]

    assert (trial.status, trial.why) == ("waiting", "was submitted and has not started")
    assert trial.to_train

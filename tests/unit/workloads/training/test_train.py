import itertools
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweep import registry
from workloads.architectures import dense, linformer
from workloads.checkpoint import checkpoint
from workloads.distributed.process_group import RankGroup
from workloads.layers.modules.init import initialise
from workloads.training import checkpointing
from workloads.training.data_loader import DataLoader
from workloads.training.metrics.reporter import Diverged, Interrupted
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.optimizer.lr_schedule import evaluation_steps
from workloads.training.rank_job import RankJob
from workloads.training.step.train_step import TrainStep, accumulate_gradients, even_passes
from workloads.training.step.usage_schedule import UsageSchedule
from workloads.training.train import run
from workloads.training.trainer import _seed_of

LONG = pytest.mark.long
STEPS = 8
DATA = {
    "source": "biographies",
    "n_people": 20,
    "style": "compact",
    "n_wordings": 4,
    "n_probe_people": 4,
    **{f"n_{pool}": 8 for pool in ("first_names", "middle_names", "last_names", "years", "cities")},
    **{f"n_{pool}": 8 for pool in ("universities", "majors", "employers")},
}
DENSE = {"architecture": "dense", "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16}
MEMORY = {
    **DENSE,
    "architecture": "memory_plus",
    "n_keys": 4,
    "memory_layers": [1],
    "n_memory_heads": 2,
    "knn": 2,
}
WIDE_MEMORY = {**MEMORY, "n_keys": 32}
"""With more rows than a step reads."""
TRAIN = {"tokens": STEPS * 96, "batch_tokens": 96, "seq_len": 16, "lr": 0.01, "value_lr_ratio": 4.0}


def job_in(folder: Path, **changes: object) -> RankJob:
    job = RankJob(
        data=DATA,
        model=MEMORY,
        train=TRAIN,
        seed=5,
        checkpoints=folder / "checkpoints",
        cache=folder / "cache",
        log_every_steps=1,
        evaluations=2,
        checkpoint_every_s=0.0,
        device="cpu",
    )
    return replace(job, **changes)


class Killed(BaseException):
    pass


class Recorder:
    """Keeps what a run says. `when(event, step)` may raise, as a kill at that moment would."""

    def __init__(
        self, when: Callable[[str, int], object] = lambda event, step: None, *, stop_at: int = 10**9
    ):
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.checkpoints: list[tuple[int, str]] = []
        self.phases: list[tuple[int, str]] = []
        self._when, self._stop_at, self._asked = when, stop_at, 0

    def metrics(self, step, values):
        self._when("before metrics", step)
        self.rows.append((step, dict(values)))
        self._when("after metrics", step)

    def checkpoint(self, step, path):
        self.checkpoints.append((step, path.name))
        self._when("after checkpoint", step)

    def progress(self, step, steps, phase, values):
        assert steps == STEPS
        self.phases.append((step, phase))
        self._when(phase, step)

    def should_stop(self):
        self._asked += 1
        return self._asked >= self._stop_at


def ticking() -> Callable[[], float]:
    """A clock that is one second further each time somebody looks."""
    return itertools.count().__next__


def comparable(rows: list[tuple[int, dict[str, float]]]) -> dict[int, dict[str, float]]:
    """Return step -> metrics, the last said winning; without what depends on an attempt's warm-ups.

    Rates and phases have laps, which a restart cuts short. What steps took stays the same in all.
    """
    merged: dict[int, dict[str, float]] = {}
    for step, values in rows:
        merged[step] = {
            name: value
            for name, value in values.items()
            if name != "train/tokens_per_s" and not name.startswith(("device/", "step_time/"))
        }
        if "time/start_s" in values:
            merged[step]["time/train_s"] += round(merged[step].pop("time/start_s"), 6)
            merged[step]["time/train_s"] = round(merged[step]["time/train_s"], 6)
    return merged


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, dict[int, dict[str, float]]]:
    results = {}
    for model in (DENSE, MEMORY):
        reporter = Recorder()
        run(job_in(tmp_path_factory.mktemp("run"), model=model), reporter, clock=ticking())
        results[str(model["architecture"])] = comparable(reporter.rows)
    return results


def test_the_last_row_holds_everything_and_is_what_run_returns(tmp_path):
    reporter = Recorder()

    metrics = run(job_in(tmp_path, log_every_steps=3), reporter)

    probes = [
        f"recall/{probe}/{measure}"
        for probe in ("train_wording", "heldout_wording", "question")
        for measure in ("exact_match", "answer_nll")
    ]
    training = [
        f"train/{n}"
        for n in ("loss", "lr", "grad_norm", "value_grad_norm", "tokens", "tokens_per_s")
    ]
    evaluation = ["valid/loss", *probes, "knowledge/stored_bits", "knowledge/bits_per_param"]
    statistics = (
        "usage",
        "usage_ever",
        "kl",
        "effective_rows",
        "top1_weight",
        "max_over_mean",
        "distinct_rows",
        "output_ratio",
    )
    memory = [f"memory/{layer}{name}" for name in statistics for layer in ("", "layer_01/")]
    times = [f"time/{name}_s" for name in ("train", "start", "evaluate", "data")]
    phases = ("data", "forward", "backward", "communication", "optimizer")
    device = ("model_bytes_per_s", "micro_batch_tokens", "activation_checkpointing")
    use = [*(f"device/{name}" for name in device), *(f"step_time/{phase}_s" for phase in phases)]
    assert set(metrics) == {*training, *evaluation, *memory, *times, *use}
    assert "step_time/forward_s" not in reporter.rows[1][1]  # the first steps say little
    assert reporter.rows[-1] == (STEPS, metrics)
    assert [step for step, _ in reporter.rows] == [3, 4, 6, 8]
    assert "valid/loss" in reporter.rows[1][1]
    assert "train/loss" not in reporter.rows[1][1]
    assert metrics["train/tokens"] == STEPS * 96
    assert all(np.isfinite(value) for value in metrics.values())
    phases = list(dict.fromkeys(phase for _, phase in reporter.phases))
    assert phases[:4] == ["data", "model", "start", "train"]
    assert {*phases[4:]} == {"evaluate", "checkpoint"}


def test_training_takes_as_long_as_its_steps_whatever_each_attempt_compiles(tmp_path, monkeypatch):
    """Steps take a second, and the first of an attempt a hundred, as one that compiles."""
    now, update, attempts = [0.0], TrainStep.update, set()

    def timed(step, *args, **kwargs):
        now[0] += 1.0 if step in attempts else 100.0
        attempts.add(step)
        return update(step, *args, **kwargs)

    monkeypatch.setattr(TrainStep, "update", timed)
    job, reporter = job_in(tmp_path, model=DENSE, evaluations=1), Recorder()

    with pytest.raises(Interrupted):
        run(job, Recorder(stop_at=6), clock=lambda: now[0])
    run(job, reporter, clock=lambda: now[0])

    assert len(attempts) == 2
    last = reporter.rows[-1][1]
    assert last["time/train_s"] == pytest.approx(STEPS)
    assert last["time/start_s"] == pytest.approx(2 * 99)


def test_a_checkpoint_that_knows_of_no_warm_ups_goes_on(tmp_path, undisturbed, monkeypatch):
    """Of before 2026-11-28: all seconds of steps are those of training."""
    load = checkpoint.load

    def older(*args, **kwargs):
        saved = load(*args, **kwargs)
        del saved["warm_ups"]
        saved["seconds"]["train"] += saved["seconds"].pop("start")
        return saved

    job, reporter = job_in(tmp_path), Recorder()
    with pytest.raises(Interrupted):
        run(job, Recorder(stop_at=4), clock=ticking())
    monkeypatch.setattr(checkpoint, "load", older)
    run(job, reporter, clock=ticking())

    rows = comparable(reporter.rows)
    assert rows == {step: undisturbed["memory_plus"][step] for step in rows}
    assert sorted(rows) == [5, 6, 7, 8]


def test_a_run_that_stops_early_is_the_beginning_of_the_whole_one(tmp_path, undisturbed):
    class Stopping(Recorder):
        def progress(self, step, steps, phase, values):
            assert steps == 5

    reporter = Stopping()
    train = {**TRAIN, "stop_at_tokens": 5 * 96}
    run(job_in(tmp_path, train=train, evaluations=1), reporter, clock=ticking())

    rows, whole = comparable(reporter.rows), undisturbed["memory_plus"]
    assert sorted(rows) == [1, 2, 3, 4, 5]
    for step, values in rows.items():
        assert values["train/loss"] == whole[step]["train/loss"]
        assert values["train/lr"] == whole[step]["train/lr"]
    assert "valid/loss" in rows[5]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path, undisturbed):
    same, other = Recorder(), Recorder()
    run(job_in(tmp_path / "same", checkpoint_every_s=1e9), same, clock=ticking())
    run(job_in(tmp_path / "other", seed=6), other, clock=ticking())

    # One wrote a checkpoint at every step and the other none: writing does not change numbers.
    assert comparable(same.rows) == undisturbed["memory_plus"]
    assert other.rows[0][1]["train/loss"] != same.rows[0][1]["train/loss"]


@pytest.mark.parametrize(
    ("model", "event", "at", "every_s"),
    [
        pytest.param(MEMORY, "data", 0, 0.0, marks=LONG),
        pytest.param(MEMORY, "train", 1, 0.0, marks=LONG),
        (MEMORY, "train", 3, 0.0),
        (MEMORY, "before metrics", 3, 12.0),
        (MEMORY, "evaluate", 4, 0.0),
        pytest.param(MEMORY, "after metrics", 4, 0.0, marks=LONG),
        pytest.param(MEMORY, "after checkpoint", 4, 0.0, marks=LONG),
        pytest.param(MEMORY, "train", 7, 12.0, marks=LONG),
        pytest.param(MEMORY, "evaluate", 8, 12.0, marks=LONG),
        (MEMORY, "checkpoint", 8, 0.0),
        (DENSE, "train", 2, 0.0),
        pytest.param(DENSE, "after checkpoint", 5, 0.0, marks=LONG),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, undisturbed, model, event, at, every_s):
    job = job_in(tmp_path, model=model, checkpoint_every_s=every_s)

    def kill(what: str, step: int) -> None:
        if (what, step) == (event, at):
            raise Killed

    first, second = Recorder(kill), Recorder()
    with pytest.raises(Killed):
        run(job, first, clock=ticking())
    run(job, second, clock=ticking())

    expected = undisturbed[model["architecture"]]
    assert comparable(first.rows + second.rows) == expected
    resumed_after = first.checkpoints[-1][0] if first.checkpoints else 0
    assert second.phases[0] == (resumed_after, "data")
    assert [step for step, _ in second.rows] == list(range(resumed_after + 1, STEPS + 1))


@pytest.mark.parametrize("table_optimizer", ["rowwise", "lazy_adamw"])
def test_a_killed_run_keeps_what_its_table_optimizer_knows(tmp_path, table_optimizer):
    train = {**TRAIN, "table_optimizer": table_optimizer}
    whole, killed = (job_in(tmp_path / name, train=train) for name in ("whole", "killed"))
    expected = Recorder()
    run(whole, expected, clock=ticking())

    def kill(what: str, step: int) -> None:
        if (what, step) == ("after checkpoint", 5):
            raise Killed

    first, second = Recorder(kill), Recorder()
    with pytest.raises(Killed):
        run(killed, first, clock=ticking())
    run(killed, second, clock=ticking())

    assert comparable(first.rows + second.rows) == comparable(expected.rows)


def test_a_run_that_is_killed_again_and_again_arrives(tmp_path, undisturbed):
    job, rows = job_in(tmp_path), []
    for life in range(1, STEPS):

        def kill(what: str, step: int, life: int = life) -> None:
            if (what, step) == ("after checkpoint", life):
                raise Killed

        reporter = Recorder(kill)
        with pytest.raises(Killed):
            run(job, reporter, clock=ticking())
        rows += reporter.rows
    last = Recorder()
    run(job, last, clock=ticking())

    assert comparable(rows + last.rows) == undisturbed["memory_plus"]
    assert [step for step, _ in rows + last.rows] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("polls", [2, 4, 7])
def test_a_request_to_stop_leaves_a_checkpoint_of_that_step(tmp_path, undisturbed, polls):
    job = job_in(tmp_path, checkpoint_every_s=1e9)
    first, second = Recorder(stop_at=polls), Recorder()

    with pytest.raises(Interrupted) as stopped:
        run(job, first, clock=ticking())
    run(job, second, clock=ticking())

    assert stopped.value.step == polls
    assert first.checkpoints == [(polls, f"step-{polls:08d}")]
    assert [step for step, _ in second.rows] == list(range(polls + 1, STEPS + 1))
    assert comparable(first.rows + second.rows) == undisturbed["memory_plus"]


def test_a_request_to_stop_before_the_first_step_is_met_at_once(tmp_path, undisturbed):
    job = job_in(tmp_path, checkpoint_every_s=1e9)
    early, first, resumed, last = (Recorder(stop_at=n) for n in (1, 3, 1, 10**9))

    with pytest.raises(Interrupted, match="stopped on request before the first step"):
        run(job, early, clock=ticking())
    with pytest.raises(Interrupted):
        run(job, first, clock=ticking())
    with pytest.raises(Interrupted, match="stopped on request after step 3;") as stopped:
        run(job, resumed, clock=ticking())
    run(job, last, clock=ticking())

    assert (early.rows, early.checkpoints, early.phases[-1]) == ([], [], (0, "start"))
    assert (resumed.rows, resumed.checkpoints, stopped.value.step) == ([], [], 3)
    assert comparable(first.rows + last.rows) == undisturbed["memory_plus"]


def test_divergence_detection_remembers_the_untrained_model_over_restarts(tmp_path, undisturbed):
    job = job_in(tmp_path, checkpoint_every_s=1e9)
    for step in (2, 4):
        with pytest.raises(Interrupted):
            run(job, Recorder(stop_at=2))
        watch = checkpoint.load(job.checkpoints / f"step-{step:08d}")["watch"]

        assert watch == {
            "untrained_loss": undisturbed["memory_plus"][1]["train/loss"],
            "exploded_steps": 0,
        }


def test_a_request_to_stop_in_the_last_step_is_too_late(tmp_path):
    reporter = Recorder(stop_at=STEPS)

    run(job_in(tmp_path), reporter)

    assert reporter.checkpoints[-1] == (STEPS, "final")


def test_a_finished_run_says_the_same_again_and_trains_nothing(tmp_path):
    job = job_in(tmp_path)
    metrics = run(job, Recorder())
    again = Recorder()

    assert run(job, again) == metrics
    assert (again.rows, again.phases) == ([], [])
    assert [p.name for p in job.checkpoints.iterdir()] == ["final"]
    weights = checkpoint.load(job.checkpoints / "final")["weights"]
    assert "optimizer" not in weights
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_a_torn_checkpoint_is_named_and_costs_its_steps_only(tmp_path, undisturbed, caplog):
    job = job_in(tmp_path)
    with pytest.raises(Interrupted):
        run(job, Recorder(stop_at=6), clock=ticking())
    with (job.checkpoints / "step-00000006" / "state.pt").open("r+b") as file:
        file.truncate(1000)
    reporter = Recorder()

    with caplog.at_level(logging.WARNING):
        run(job, reporter, clock=ticking())

    assert "step-00000006: state.pt has 1000 bytes" in caplog.text
    assert reporter.phases[0] == (5, "data")
    assert comparable(reporter.rows) == {s: undisturbed["memory_plus"][s] for s in (6, 7, 8)}


def test_checkpoints_follow_the_clock_and_two_are_kept(tmp_path):
    job = job_in(tmp_path, checkpoint_every_s=15.0, evaluations=1)
    reporter = Recorder(lambda event, step: _fail_if(event == "after checkpoint" and step == STEPS))

    with pytest.raises(Killed):
        run(job, reporter, clock=ticking())

    # A step without evaluation looks at the clock seven times: data 2, train 2 + 2, checkpoint 1.
    assert [step for step, _ in reporter.checkpoints] == [3, 6, 8]


def test_the_first_checkpoint_waits_as_long_as_its_bytes_are_expected_to_take(
    tmp_path, monkeypatch
):
    """Ten times: a rate of a byte a second is slower than eight steps are long."""
    job = job_in(tmp_path, checkpoint_every_s=1.0, evaluations=1)
    waits, writes = Recorder(), Recorder()

    monkeypatch.setattr(checkpointing, "WRITE_BYTES_PER_S", 1.0)
    run(job, waits, clock=ticking())
    monkeypatch.setattr(checkpointing, "WRITE_BYTES_PER_S", 1e12)
    run(replace(job, checkpoints=tmp_path / "other"), writes, clock=ticking())

    assert [name for _, name in waits.checkpoints] == ["final"]
    assert len(writes.checkpoints) > 1


def test_a_checkpoint_is_as_large_as_its_tensors(tmp_path):
    state = {"step": 3, "a": torch.zeros(5), "b": [{"c": torch.zeros(2, 2, dtype=torch.bfloat16)}]}

    assert checkpointing._tensor_bytes(state) == 20 + 8


def _fail_if(condition: bool) -> None:
    if condition:
        raise Killed


def test_a_checkpoint_of_other_weights_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        run(job_in(tmp_path), Recorder(stop_at=2))

    with pytest.raises(
        ValueError, match=r"checkpoint and model differ in .*if the architecture's code changed"
    ):
        run(job_in(tmp_path, model=DENSE), Recorder())


def test_a_learning_rate_beyond_reason_is_divergence_and_leaves_no_checkpoint_of_it(tmp_path):
    job = job_in(tmp_path, train={**TRAIN, "lr": 1e30, "grad_clip": None, "warmup_fraction": 0.0})
    reporter = Recorder()

    with pytest.raises(
        Diverged, match=r"step \d+: (loss|grad_norm|value_grad_norm) is (nan|inf)"
    ) as diverged:
        run(job, reporter)

    failed_at = int(str(diverged.value).split(":")[0].removeprefix("step "))
    assert all(step < failed_at for step, _ in reporter.checkpoints)


@pytest.mark.parametrize("passes", [6, 3, 2, 1])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch(passes):
    windows = torch.randint(11, (6, 9), generator=torch.Generator().manual_seed(0))
    model = dense.Config(d_model=8, n_layers=2, n_heads=2, d_ff=16).build(11)
    initialise(model, 0)

    def gradients(passes: int) -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        loss = accumulate_gradients(
            model, windows, batch_tokens=48, passes=passes, autocast=nullcontext
        )
        return loss["loss"].item(), {name: p.grad.clone() for name, p in model.named_parameters()}

    (whole_loss, whole), (loss, parts) = gradients(1), gradients(passes)

    expected = torch.nn.functional.cross_entropy(
        model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    )
    assert whole_loss == pytest.approx(expected.item(), rel=1e-6)
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("passes", [9, 3, 2])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("moe", {"group": "sequence", "balance_loss": 1.0, "z_loss": 1.0}),
        ("moe", {"selection_bias": True}),
    ],
    ids=["balance and z loss", "selection bias"],
)
def test_what_layers_add_to_the_loss_adds_up_over_uneven_micro_batches(
    architecture, changes, passes
):
    module = registry.architecture(architecture)
    config = module.Config(**{**module.PRESETS["d8"], **changes})
    model = config.build(11)
    initialise(model, 0)
    windows = torch.randint(11, (9, 9), generator=torch.Generator().manual_seed(0))

    def gradients(passes: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        model.zero_grad()
        losses = accumulate_gradients(
            model, windows, batch_tokens=72, passes=passes, autocast=nullcontext
        )
        found = {name: p.grad.clone() for name, p in model.named_parameters()}
        return {name: loss.item() for name, loss in losses.items()}, found

    (whole_losses, whole), (losses, parts) = gradients(1), gradients(passes)

    assert losses == pytest.approx(whole_losses, rel=1e-5, abs=1e-7)
    assert "auxiliary_loss" in losses
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("steps", "reported", "expected"),
    [
        (8, None, {1, 8}),
        (48, None, {1, 17, 33}),
        (48, 10, {1, 17, 24, 30, 33, 48}),
        (48, 1, {*range(1, 49)}),
        (5000, None, {*range(1, 5001, 16)}),
        (6001, 100, {*range(1, 6002, 16), 3001}),
    ],
)
def test_use_is_recorded_in_one_of_sixteen_steps_and_at_least_once_a_report(
    tmp_path, steps, reported, expected
):
    usage = UsageSchedule(evaluate_at=evaluation_steps(steps, 2), every_steps=reported)

    observed, reported_at = (
        {step for step in range(1, steps + 1) if decide(step)}
        for decide in (usage.records, usage.reports)
    )

    assert observed == expected
    reports = sorted(reported_at)
    assert reports[-1] == steps
    for before, report in itertools.pairwise([0, *reports]):
        assert observed & {*range(before + 1, report + 1)}, report


def test_a_row_read_in_a_step_that_is_not_recorded_counts_as_ever_read(tmp_path):
    """Of eight steps the first is recorded alone: usage is of that step, usage_ever of all."""

    class Silent(Recorder):
        def progress(self, step, steps, phase, values):
            pass

    first, all_ = (
        run(
            job_in(
                tmp_path / str(steps),
                model=WIDE_MEMORY,
                train={**TRAIN, "tokens": steps * 96, "lr": 1e-9},
                evaluations=1,
            ),
            Silent(),
        )
        for steps in (1, STEPS)
    )

    assert first["memory/usage"] == first["memory/usage_ever"]
    assert all_["memory/usage"] == first["memory/usage"]
    assert all_["memory/usage_ever"] > first["memory/usage_ever"]


def test_a_run_in_micro_batches_is_the_same_run(tmp_path, undisturbed):
    reporter = Recorder()
    run(job_in(tmp_path, micro_batch_tokens=40), reporter, clock=ticking())

    for step, expected in undisturbed["memory_plus"].items():
        found = comparable(reporter.rows)[step]
        # Fewer tokens pass at once, so a pass reads fewer different rows.
        passes = {name for name in found if name.endswith("distinct_rows")}
        assert all(found.pop(name) <= expected[name] for name in passes)
        expected = {name: value for name, value in expected.items() if name not in passes}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(st.data())
def test_every_rank_makes_as_many_passes(data):
    """Of no more sequences than fit, but for two where one at a time would not come out even."""
    size, rows = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    sequences = data.draw(st.integers(size, 100))

    passes = even_passes(sequences, world=RankGroup(size=size), rows=rows)

    for rank in range(size):
        share = RankGroup(rank=rank, size=size).local_range(sequences)
        parts = [len(part) for part in np.array_split(share, passes)]
        assert min(parts) >= 1
        assert max(parts) <= (2 if rows == 1 and sequences % size else rows)


def test_a_model_with_other_parameters_than_were_counted_is_not_trained(tmp_path, monkeypatch):
    count = dense.Config.param_count
    monkeypatch.setattr(
        dense.Config,
        "param_count",
        lambda self, vocab_size: replace(count(self, vocab_size), feed_forward=0),
    )

    with pytest.raises(ValueError, match="model: param_count gives .* parameters, the model has"):
        run(job_in(tmp_path, model=DENSE), Recorder())


def test_a_fact_longer_than_a_model_reads_is_refused_before_training(tmp_path):
    model = {"architecture": "linformer", **linformer.PRESETS["d8"], "max_seq_len": 16}
    facts = tmp_path / "facts.tsv"
    rows = [f"Land {i}\tcapital\t{'Town' * (1 + 9 * (i == 3))} {i % 4}" for i in range(20)]
    facts.write_text("\n".join(["subject\trelation\tobject", *rows]) + "\n")
    data = {"source": "triples", "path": str(facts), "vocab_size": 257}
    recorder = Recorder()
    message = (
        r"data: the probe train_wording has a fact of \d+ tokens, and the model reads 16; "
        r"raise model\.max_seq_len, or leave the fact out"
    )

    with pytest.raises(ValueError, match=message):
        run(job_in(tmp_path, model=model, data=data), recorder)

    assert recorder.rows == []


@pytest.mark.parametrize("gate", [1.0, 0.0])
def test_a_model_that_sees_later_tokens_is_not_trained_on(tmp_path, monkeypatch, gate):
    """It is found before the first step or, where the part begins at zero, at an evaluation."""
    build = dense.Config.build

    def with_leak(self, vocab_size):
        model = build(self, vocab_size)
        forward = model.layers[0].forward
        opened = [gate]

        def leaks(x, context):
            opened[0] += 0.01 * torch.is_grad_enabled()
            return forward(x + opened[0] * x.roll(-1, 1), context)

        model.layers[0].forward = leaks
        return model

    monkeypatch.setattr(dense.Config, "build", with_leak)
    recorder = Recorder()
    job = job_in(tmp_path, model={"architecture": "dense", **dense.PRESETS["d16"]})

    with pytest.raises(ValueError, match="its outputs change with tokens that come later"):
        run(job, recorder)

    evaluated = [step for step, values in recorder.rows if "valid/loss" in values]
    assert evaluated == []
    assert (recorder.rows == []) == (gate > 0)


def test_a_micro_batch_smaller_than_a_sequence_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"micro_batch_tokens must be at least one sequence \(16\), got 15"
    ):
        run(job_in(tmp_path, micro_batch_tokens=15), Recorder())


def test_several_ranks_need_a_place_to_meet(tmp_path):
    with pytest.raises(ValueError, match="2 ranks need a file to meet at"):
        run(job_in(tmp_path, world_size=2), Recorder())


def test_bf16_trains(tmp_path, undisturbed):
    metrics = run(job_in(tmp_path, train={**TRAIN, "precision": "bf16"}), Recorder())

    loss = undisturbed["memory_plus"][STEPS]["train/loss"]
    assert metrics["train/loss"] != loss
    assert metrics["train/loss"] == pytest.approx(loss, rel=0.02)


RANK = """
import json
import shutil
from pathlib import Path
from workloads.training.step.usage_schedule import UsageSchedule
from workloads.training.data_loader import DataLoader
from workloads.training.metrics.reporter import Interrupted
from workloads.training.rank_job import RankJob
from workloads.training.train import run
from workloads.training.trainer import _seed_of

class Reporter:
    rows = []
    polls = 0
    def metrics(self, step, values): self.rows.append((step, dict(values)))
    def checkpoint(self, step, path): assert rank == 0
    def progress(self, step, steps, phase, values): Reporter.step = step
    def should_stop(self):
        Reporter.polls += 1
        return rank == 1 and Reporter.polls == 3

class Early(Reporter):
    def should_stop(self): return rank == 1

for name in ("checkpoints", "cache", "rendezvous"):
    fields[name] = Path(fields[name])
job = RankJob(**fields, rank=rank, world_size=2)
try:
    run(job, Early())
    raise SystemExit("nobody stopped")
except Interrupted as stopped:
    assert stopped.step == 0 and not list(fields["checkpoints"].glob("*"))
try:
    run(job, Reporter())
    raise SystemExit("nobody stopped")
except Interrupted as stopped:
    stopped_at = stopped.step
if rank == 0:
    shutil.copytree(fields["checkpoints"], out / "stopped")
metrics = run(job, Reporter())
(out / f"{rank}.json").write_text(json.dumps({"stopped_at": stopped_at, "metrics": metrics, "rows": Reporter.rows, "step": Reporter.step}))
"""


def test_two_ranks_compute_what_one_does_stop_together_and_one_can_go_on(tmp_path, run_ranks):
    """Two processes: they meet, stop at the same step though one is told, meet again at the same file, resume and finish. Before the first step they stop with nothing to save."""
    # An odd number of sequences per step: the ranks' shares differ.
    train = {**TRAIN, "tokens": STEPS * 112, "batch_tokens": 112}
    alone = Recorder()
    run(job_in(tmp_path / "alone", model=WIDE_MEMORY, train=train), alone)
    fields = {
        "data": DATA,
        "model": WIDE_MEMORY,
        "train": train,
        "seed": 5,
        "log_every_steps": 1,
        "evaluations": 2,
        "checkpoint_every_s": 0.0,
        "device": "cpu",
        "checkpoints": str(tmp_path / "checkpoints"),
        "cache": str(tmp_path / "cache"),
        "rendezvous": str(tmp_path / "rendezvous"),
    }
    run_ranks(RANK, 2, {"fields": fields, "out": tmp_path})
    leader, follower = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))

    assert leader["stopped_at"] == follower["stopped_at"] == 3
    assert follower["rows"] == []
    assert leader["step"] == follower["step"] == STEPS
    own = ("time/", "step_time/", "device/", "memory/")
    same = [name for name in leader["metrics"] if not name.startswith(own)]
    same.remove("train/tokens_per_s")
    # Other statistics are those of each rank's share.
    same.append("memory/usage_ever")
    assert {n: leader["metrics"][n] for n in same} == {n: follower["metrics"][n] for n in same}
    for (step, together), (expected_step, expected) in zip(leader["rows"], alone.rows, strict=True):
        assert step == expected_step
        for name in same:
            if name in expected:
                assert together[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-9), (
                    step,
                    name,
                )
    assert not (tmp_path / "rendezvous").exists()

    # One rank goes on from where the two had stopped.
    resumed = Recorder()
    job = job_in(tmp_path / "resumed", model=WIDE_MEMORY, train=train)
    run(replace(job, checkpoints=tmp_path / "stopped"), resumed)
    by_step = dict(alone.rows)
    assert [step for step, _ in resumed.rows] == [step for step, _ in alone.rows if step > 3]
    for step, values in resumed.rows:
        for name in {*same} & values.keys():
            assert values[name] == pytest.approx(by_step[step][name], rel=1e-6, abs=1e-9), name


def test_a_batch_with_fewer_sequences_than_ranks_is_refused(tmp_path):
    from workloads.distributed.process_group import RankGroup
    from workloads.training.config import TrainConfig

    config = TrainConfig(tokens=32, batch_tokens=32, seq_len=16, lr=0.1)
    with pytest.raises(ValueError, match="holds 2 sequences for 3 ranks"):
        DataLoader(None, config, seed=5, world=RankGroup(rank=0, size=3), here=torch.device("cpu"))


def test_values_learn_at_the_ratio_of_each_step(tmp_path, monkeypatch):
    asked, set_rate = [], Optimizer.set_learning_rate

    def watched(optimizer, lr, *, value_lr_ratio):
        asked.append(value_lr_ratio)
        set_rate(optimizer, lr, value_lr_ratio=value_lr_ratio)

    monkeypatch.setattr(Optimizer, "set_learning_rate", watched)
    run(job_in(tmp_path, train={**TRAIN, "value_lr_final_ratio": 1.0}), Recorder())

    assert asked == pytest.approx([1 + 3 * (1 - step / STEPS) for step in range(1, STEPS + 1)])


def test_every_seed_step_and_rank_draws_differently():
    draws = {
        _seed_of(seed, step=step, rank=rank)
        for seed, step, rank in itertools.product(range(4), repeat=3)
    }

    assert len(draws) == 4**3

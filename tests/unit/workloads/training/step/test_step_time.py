"""Timing steps: who is timed how often. No number of seconds is asserted but by a clock of our own."""

import io
import json
import time

import pytest
import torch

from workloads.training.step import step_time, train_step
from workloads.training.step.step_time import Setting, time_steps

DENSE = {"architecture": "dense", "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16}
MEMORY = {
    **DENSE,
    "architecture": "memory_plus",
    "n_keys": 4,
    "memory_layers": [1],
    "n_memory_heads": 2,
    "knn": 2,
}
TRAIN = {"tokens": 2**62, "batch_tokens": 32, "seq_len": 8, "lr": 0.01}
CPU = Setting(device="cpu")


class Ticking:
    """A clock that is read twice a block and advances by what the block is said to take."""

    def __init__(self, *takes_s: float) -> None:
        self._takes_s, self._now, self._reads = takes_s, 0.0, 0

    def __call__(self) -> float:
        self._reads += 1
        if self._reads % 2 == 0:
            self._now += self._takes_s[(self._reads // 2 - 1) % len(self._takes_s)]
        return self._now


def test_models_take_turns_and_are_timed_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    built, timed = [], []
    make = step_time._step

    def noted(model, *rest, **options):
        step, name = make(model, *rest, **options), model["architecture"]
        built.append(name)
        return lambda: (timed.append(name), step())[1]

    monkeypatch.setattr(step_time, "_step", noted)
    times = time_steps(
        [DENSE, MEMORY], TRAIN, vocab_size=11, setting=CPU, budget_s=0.0, clock=Ticking(0.1, 0.2)
    )

    warm = ["dense"] * step_time.WARM_UP_STEPS + ["memory_plus"] * step_time.WARM_UP_STEPS
    assert built == ["dense", "memory_plus"]
    assert timed == [*warm, *["dense", "memory_plus"] * (1 + step_time.FEWEST_ROUNDS)]
    assert [len(blocks) for blocks in times.seconds] == [step_time.FEWEST_ROUNDS] * 2
    assert times.median_s == pytest.approx((0.1, 0.2))
    assert times.spread_s == pytest.approx((0.0, 0.0), abs=1e-9)


def test_quick_steps_are_timed_in_blocks_that_fill_the_seconds_asked_for() -> None:
    times = time_steps(
        [DENSE, DENSE], TRAIN, vocab_size=11, setting=CPU, budget_s=0.2, clock=Ticking(0.01)
    )

    # Five steps of a hundredth make a block; a block of ours takes no longer, so a step is a fifth
    # of it.
    assert times.median_s == pytest.approx((0.002, 0.002))
    assert len(times.seconds[0]) == step_time.FEWEST_ROUNDS


def test_a_real_measurement_has_a_positive_number_for_every_block() -> None:
    before = torch.get_num_threads()
    times = time_steps([DENSE, MEMORY, DENSE], TRAIN, vocab_size=11, setting=CPU, budget_s=0.1)

    assert {len(blocks) for blocks in times.seconds} == {len(times.seconds[0])}
    assert all(seconds > 0 for blocks in times.seconds for seconds in blocks)
    assert len(times.median_s) == len(times.spread_s) == 3
    assert times.device
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("n_threads", "clock"), [(1, time.process_time), (2, time.perf_counter)], ids=["own", "wall"]
)
def test_one_thread_on_a_cpu_is_timed_by_what_it_has_of_a_core(
    n_threads, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    block = step_time.block_s
    monkeypatch.setattr(
        step_time,
        "block_s",
        lambda *a, clock, **k: (used.append(clock), block(*a, clock=clock, **k))[1],
    )
    time_steps(
        [DENSE],
        TRAIN,
        vocab_size=11,
        setting=Setting(device="cpu", n_threads=n_threads),
        budget_s=0,
    )

    assert set(used) == {clock}


def test_a_rank_is_timed_on_its_share_in_its_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    accumulate = train_step.accumulate_gradients

    def noted(model, windows, **options):
        seen.append((tuple(windows.shape), options["passes"]))
        return accumulate(model, windows, **options)

    monkeypatch.setattr(train_step, "accumulate_gradients", noted)
    setting = Setting(device="cpu", ranks=2, micro_batch_tokens=8)
    time_steps([DENSE], TRAIN, vocab_size=11, setting=setting, budget_s=0)

    assert set(seen) == {((2, 9), 2)}


def test_steps_leave_the_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    accumulate = train_step.accumulate_gradients

    def noted(model, *rest, **options):
        models.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return accumulate(model, *rest, **options)

    monkeypatch.setattr(train_step, "accumulate_gradients", noted)
    time_steps([MEMORY], TRAIN, vocab_size=11, setting=CPU, budget_s=0)

    for name, first in models[0].items():
        assert torch.equal(first, models[-1][name])


def request(**changes: object) -> str:
    fields = {
        "models": [DENSE, MEMORY],
        "train": TRAIN,
        "vocab_size": 11,
        "device": "cpu",
        "n_threads": 1,
        "ranks": 1,
        "micro_batch_tokens": None,
        "budget_s": 0.0,
    }
    return json.dumps({**fields, **changes}) + "\n"


def test_every_request_has_one_answer_and_a_mistake_is_one_of_them() -> None:
    answers = io.StringIO()
    wrong = request(models=[{**DENSE, "d_ff": 0}])

    step_time.serve(io.StringIO(request() + wrong + request(device="tpu") + request()), answers)

    first, second, third, fourth = (json.loads(line) for line in answers.getvalue().splitlines())
    assert [len(blocks) for blocks in first["seconds"]] == [step_time.FEWEST_ROUNDS] * 2
    assert len(first["median_s"]) == len(first["spread_s"]) == 2
    assert first["n_threads"] == 1
    assert first["device_type"] == "cpu"
    assert first["versions"]["torch"] == torch.__version__
    assert "d_ff must be" in second["error"]
    assert third == {"error": "device must be auto, cpu or cuda, got 'tpu'", "fix": ""}
    assert "seconds" in fourth


def test_what_to_do_stands_beside_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answers = io.StringIO()

    step_time.serve(io.StringIO(request(device="cuda")), answers)

    assert json.loads(answers.getvalue()) == {
        "error": "device: cuda was asked for, but torch sees no GPU",
        "fix": "use auto or cpu",
    }

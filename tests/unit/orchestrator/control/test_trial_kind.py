"""Which trials may follow one another in a process."""

from dataclasses import replace

from orchestrator.control.retry_policy import PastAttempt
from orchestrator.control.trial_state import ManagedTrial
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import EvaluationSchedule, Outcome, Resources, TrialSpec

TRAIN = {"tokens": 100, "batch_tokens": 10, "seq_len": 10, "lr": 0.1}
SPEC = TrialSpec(
    sweep="s",
    data={"source": "x"},
    model={"architecture": "dense", "d_model": 16},
    train=TRAIN,
    seed=0,
)


def kind(tmp_path, **past):
    return lambda **changes: (
        ManagedTrial(folder=TrialDir(tmp_path), spec=replace(SPEC, **changes), **past).kind
    )


def test_seeds_and_learning_rates_are_of_one_kind_and_nothing_else_is(tmp_path):
    of = kind(tmp_path)

    assert of() == of(seed=1) == of(train={**TRAIN, "lr": 0.2})
    others = [
        of(data={"source": "y"}),
        of(model={**SPEC.model, "d_model": 32}),
        of(train={**TRAIN, "seq_len": 5}),
        of(train={**TRAIN, "precision": "fp32"}),
        of(resources=Resources(compile=False)),
        of(resources=Resources(activation_checkpointing=True)),
    ]
    assert len({of(), *others}) == 1 + len(others)
    assert None not in others


def test_some_trials_share_their_process_with_none(tmp_path):
    failed = PastAttempt(outcome=Outcome.KILLED, progressed=True, submission=1, counts=True)

    assert kind(tmp_path)(resources=Resources(ranks=2)) is None
    assert kind(tmp_path)(evaluation=EvaluationSchedule(suites=("cloze",), rows=10)) is None
    assert kind(tmp_path, past_attempts=[failed])() is None

"""`match`: every quantity, any field, and what is told of it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from orchestrator.sweep.draft_trial import Match
from orchestrator.sweep.load import Sweep
from orchestrator.sweep.matching import match as matching
from orchestrator.sweep.matching.isoflop_ladder import Frame
from orchestrator.sweep.matching.match import Matched
from orchestrator.sweep.parsing.diagnostics import InvalidError
from orchestrator.sweep.parsing.yaml_loader import parse

Load = Callable[..., Sweep]
Problems = Callable[..., list[str]]
FRAME = Frame(vocab_size=100, seq_len=16, batch_tokens=64)


@dataclass(frozen=True, kw_only=True)
class Strange:
    """Fields that are constrained, do nothing, or lower what they are solved for."""

    FREE_DIMENSION: ClassVar[str] = "d_ff"
    d_ff: int = 96
    n_heads: int = 4
    n_memories: int = 1
    d_model: int = 48

    def __post_init__(self) -> None:
        if self.n_heads < 1 or self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model ({self.d_model}), got {self.n_heads}")
        if not 0 <= self.n_memories <= 8:
            raise ValueError(f"n_memories must lie in 0..8, got {self.n_memories}")

    def active_param_count(self, vocab_size: int) -> int:
        padded = -(-self.d_ff // 64) * 64
        return 100 * padded + 1_000 * self.n_heads + 3_000 * (8 - self.n_memories)


def solved(field: str, target: float, **fields: int) -> tuple[int | None, list[str]]:
    place, _ = parse("match: here")
    assert place is not None
    match = Match(
        where=place,
        quantity="active_params",
        target=place,
        architecture=None,
        target_number=target,
        solve=field,
    )
    try:
        value, _ = matching.solved_field(match, Strange(**fields), FRAME, target=target, tokens=64)
    except InvalidError as error:
        return None, [f"{one.message}; {one.fix}" for one in error.diagnostics]
    return value, []


def test_values_that_the_config_refuses_are_passed_over() -> None:
    base = Strange().active_param_count(1) - 4_000

    assert solved("n_heads", base + 6_050) == (6, [])
    assert solved("n_heads", base + 16_000) == (16, [])
    assert solved("n_heads", base + 48_000) == (48, [])


def test_a_target_between_two_values_that_are_possible_names_the_nearer() -> None:
    value, (told,) = solved("n_heads", Strange().active_param_count(1) - 4_000 + 9_500)

    assert value is None
    assert "the nearest is n_heads 8 with 41_800 (-3.46 %)" in told


def test_on_a_plateau_as_little_is_changed_as_possible() -> None:
    at = Strange().active_param_count(1)

    assert solved("d_ff", at, d_ff=96) == (96, [])
    assert solved("d_ff", at, d_ff=30) == (65, [])
    assert solved("d_ff", at, d_ff=500) == (128, [])


def test_a_field_that_lowers_the_quantity_is_found_among_the_first_values() -> None:
    at = Strange(n_memories=5).active_param_count(1)

    assert solved("n_memories", at) == (5, [])


def test_a_field_that_changes_nothing_is_called_that() -> None:
    _, (told,) = solved("d_model", 1_000_000)

    assert told.startswith("d_model does not change active parameters: with any value there are ")
    assert "or solve for d_ff (remove solve: d_model), or write active_params: 37_" in told


def test_a_model_that_takes_no_value_says_what_it_has_against_one() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Closed(Strange):
        gate: int = 0

        def __post_init__(self) -> None:
            if self.gate:
                raise ValueError(f"gate must be 0, got {self.gate}; leave it away")

    place, _ = parse("match: here")
    assert place is not None
    match = Match(
        where=place,
        quantity="active_params",
        target=place,
        architecture=None,
        target_number=1e6,
        solve="gate",
    )

    with pytest.raises(InvalidError) as caught:
        matching.solved_field(match, Closed(), FRAME, target=1e6, tokens=64)

    (diagnostic,) = caught.value.diagnostics
    assert "no value of gate is possible" in diagnostic.message
    assert "gate must be 0, got 1" in diagnostic.message


@pytest.mark.parametrize(
    ("quantity", "target"),
    [("active_params", 400_000), ("total_params", 400_000), ("bytes_per_token", 800_000)],
)
def test_any_closed_form_can_be_matched(load: Load, quantity: str, target: int) -> None:
    sweep = load(
        f"""
        trials:
          - set: {{model.architecture: table, model.n_layers: 3, model.d_ff: 40}}
            match: {{{quantity}: {target}, solve: d_model}}
        """
    )
    (trial,) = sweep.trials
    told = sweep.matches[trial.trial_id]

    assert told.quantity == quantity
    assert told.field == "d_model"
    assert told.chosen == trial.model["d_model"]
    assert told.ratio == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("target", ["3.0e+7", "plain"])
def test_training_flops_are_those_until_the_stop(load: Load, target: str) -> None:
    sweep = load(
        f"""
        trials:
          - set: {{model.architecture: table, model.d_model: 24}}
            list:
              - {{train.tokens: 512}}
              - {{train.tokens: 2_048, train.stop_at_tokens: 512}}
            match: {{training_flops: {target}}}
        """
    )
    whole, stopped = (sweep.matches[trial.trial_id] for trial in sweep.trials)

    assert whole.trial.startswith("table tiny, train.tokens 512")
    assert "train.stop_at_tokens 512" in stopped.trial
    assert dataclasses.replace(stopped, trial=whole.trial) == whole


def test_what_was_chosen_is_told_once_for_all_seeds_and_learning_rates(load: Load) -> None:
    sweep = load(
        """
        trials:
          - set: {model.architecture: table, model.d_model: 6}
            grid: {train.lr: [1.0e-2, 2.0e-2]}
            match: {training_flops: plain, solve: n_keys}
        seeds: [0, 1, 2]
        """
    )

    assert len(sweep.trials) == len(sweep.matches) == 6
    (told,) = {str(matched) for matched in sweep.matches.values()}
    assert told == "table tiny, d_model 6: n_keys 16 → 1, training FLOPs 1.008 × plain"


def test_the_trial_that_is_its_own_counterpart_is_not_told_of(load: Load) -> None:
    assert load("trials: [{match: {active_params: plain}}]").matches == {}


def test_an_entry_may_solve_for_a_field_that_its_own_counterpart_lacks(load: Load) -> None:
    sweep = load(
        """
        trials:
          - grid: {model.architecture: [plain, table], model.preset: [small]}
            match: {training_flops: 2.0e+7, solve: d_ff}
          - grid: {model.architecture: [plain]}
            match: {training_flops: plain, solve: n_keys}
        """
    )

    assert [trial.architecture for trial in sweep.trials] == ["plain", "table", "plain"]
    assert [t.trial_id in sweep.matches for t in sweep.trials] == [True, True, False]


def test_a_field_that_no_architecture_here_has_is_unknown_even_so(problems: Problems) -> None:
    (told,) = problems("trials: [{match: {training_flops: plain, solve: n_kyes}}]")

    assert told.startswith("6:49: trials[0].match.solve: plain has no field 'n_kyes' to solve for")


def test_numbers_are_told_beside_what_was_asked_for() -> None:
    told = Matched(
        trial="memory_plus d32",
        quantity="training_flops",
        counterpart=None,
        field="tokens",
        written=None,
        chosen=1_000_000,
        target=2e14,
        reached=2.004e14,
    )

    assert str(told) == (
        "memory_plus d32: tokens 1_000_000, training FLOPs 1.002 × the 2.0e+14 asked for"
    )
    counterpart = dataclasses.replace(
        told, counterpart="dense", field="d_ff", written=88, chosen=61
    )
    assert str(counterpart) == "memory_plus d32: d_ff 88 → 61, training FLOPs 1.002 × dense"


def test_a_finding_in_a_counterpart_suggests_a_number_of_the_same_kind(problems: Problems) -> None:
    text: Any = "trials: [{set: {model.preset: wide}, match: {total_params: table}}]"
    (told,) = problems(text)

    assert told.endswith("or write a number such as 5_000_000")


def test_every_architecture_of_an_entry_tells_its_own_mistake_once(problems: Problems) -> None:
    told = problems(
        """
        trials:
          - grid: {model.architecture: [plain, table], train.lr: [0.1, 0.2]}
            match: {active_params: 3}
        """
    )

    assert [line.partition(" gives")[0] for line in told] == [
        "9:5: trials[0].match: plain: no d_ff",
        "9:5: trials[0].match: table: no d_ff",
    ]
    assert "(in 2 of 4 trials, first trials[0].grid model.architecture=plain" in told[0]
    assert "(in 2 of 4 trials, first trials[0].grid model.architecture=table" in told[1]


def test_every_architecture_without_the_field_is_told(problems: Problems) -> None:
    told = problems(
        """
        trials:
          - grid: {model.architecture: [plain, mixer]}
            match: {active_params: 2_000, solve: n_keys}
        """
    )

    assert ["plain has no field" in told[0], "mixer has no field" in told[1]] == [True, True]
    assert len(told) == 2


def test_the_same_mistake_in_two_entries_is_told_in_both(problems: Problems) -> None:
    told = problems(
        """
        trials:
          - {match: {active_params: 3}}
          - {grid: {train.lr: [0.1]}, match: {active_params: 3}}
        """
    )

    assert [line.partition(".match")[0] for line in told] == ["8:6: trials[0]", "9:31: trials[1]"]

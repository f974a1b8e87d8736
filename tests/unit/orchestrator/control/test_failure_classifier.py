from pathlib import Path

import pytest

from orchestrator.control.failure_classifier import EXIT_CODES, AttemptExit, classify
from orchestrator.records.trial_spec import Outcome

FOLDER = Path("/runs/s/trials/t")


def ended(codes=None, **more):
    return AttemptExit(trial_id="t", attempt=1, exit_codes=codes or {}, **more)


def verdict(end, asked=None, error=None, has_result=False):
    return classify(end, stop_outcome=asked, error=error, has_result=has_result, folder=FOLDER)


def error(kind, message="it broke"):
    return {"kind": kind.value, "message": message}


def test_a_result_makes_it_done_whatever_happened_to_the_processes():
    end = ended({0: -9, 1: EXIT_CODES[Outcome.COMMUNICATION]})

    assert verdict(end, asked=Outcome.INTERRUPTED, has_result=True).outcome is Outcome.DONE


@pytest.mark.parametrize("outcome", sorted(EXIT_CODES.keys() - {Outcome.DONE, Outcome.INTERRUPTED}))
def test_exit_code_of_a_rank_names_the_outcome(outcome):
    ending = verdict(ended({0: EXIT_CODES[outcome]}), error=error(outcome, "why it is so"))

    assert (ending.outcome, ending.reason) == (outcome, "why it is so")


def test_killed_rank_is_the_cause_of_the_others_network_errors():
    end = ended({0: EXIT_CODES[Outcome.COMMUNICATION], 1: -9})

    ending = verdict(end, error=error(Outcome.COMMUNICATION))

    assert ending.outcome is Outcome.KILLED
    assert ending.reason == (
        "rank 1 died of SIGKILL; nobody here sent it: `dmesg` says whether memory ran out"
    )


def test_own_error_of_a_rank_is_the_cause_of_the_others_network_errors():
    end = ended({0: EXIT_CODES[Outcome.COMMUNICATION], 1: EXIT_CODES[Outcome.USER_ERROR]})

    assert verdict(end, error=error(Outcome.USER_ERROR)).outcome is Outcome.USER_ERROR


def test_ranks_that_we_killed_do_not_decide():
    end = ended({0: EXIT_CODES[Outcome.GPU_OOM], 1: -9}, killed_by_launcher=frozenset({1}))

    assert verdict(end, error=error(Outcome.GPU_OOM)).outcome is Outcome.GPU_OOM


def test_segfault_is_named():
    assert verdict(ended({0: -11})).reason == "rank 0 died of SIGSEGV"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Outcome.INTERRUPTED, "stopped on request"),
        (Outcome.CANCELLED, "cancelled on request"),
        (Outcome.TIME_LIMIT, "reached its time limit"),
    ],
)
def test_a_requested_stop_is_the_outcome(asked, sentence):
    graceful = verdict(ended({0: EXIT_CODES[Outcome.INTERRUPTED]}), asked=asked)
    forced = verdict(ended({0: -9}, killed_by_launcher=frozenset({0})), asked=asked)

    assert (graceful.outcome, graceful.reason) == (asked, f"{sentence}; no step is lost")
    assert forced.outcome is asked
    assert "before it could checkpoint" in forced.reason


def test_leaving_by_a_signal_that_we_did_not_send_is_preemption():
    assert verdict(ended({0: EXIT_CODES[Outcome.INTERRUPTED]})).outcome is Outcome.PREEMPTED


def test_lost_supervisor_is_a_lost_node():
    ending = verdict(ended(node_lost="the supervisor of n1 died, and its ranks with it"))

    assert (ending.outcome, ending.reason) == (
        Outcome.NODE_LOST,
        "the supervisor of n1 died, and its ranks with it",
    )


def test_attempt_of_a_dead_controller_is_a_lost_node_unless_it_left_an_error():
    assert verdict(ended()).outcome is Outcome.NODE_LOST
    assert verdict(ended(), error=error(Outcome.DIVERGED)).outcome is Outcome.DIVERGED


def test_unknown_exit_code_is_a_user_error_that_points_to_the_log():
    ending = verdict(ended({0: 3}))

    assert ending.outcome is Outcome.USER_ERROR
    assert "log.txt" in ending.reason


def test_ending_well_without_a_result_is_an_error():
    ending = verdict(ended({0: 0}))

    assert ending.outcome is Outcome.USER_ERROR
    assert "without result.json" in ending.reason


def test_hang_names_its_length_and_the_positions_of_ranks():
    end = ended(
        {0: -9, 1: -9, 2: -9},
        killed_by_launcher=frozenset({0, 1, 2}),
        hang="no progress for 301 s",
        last_positions={
            0: "after step 3: all_reduce",
            1: "after step 2: read",
            2: "after step 3: all_reduce",
        },
    )

    ending = verdict(end)

    assert ending.outcome is Outcome.HANG
    assert ending.reason == (
        "no progress for 301 s; ranks 0, 2 stood after step 3: all_reduce; "
        "rank 1 stood after step 2: read; all stacks are in its log"
    )


def test_a_requested_stop_comes_before_a_hang():
    end = ended({0: -9}, killed_by_launcher=frozenset({0}), hang="no progress for 301 s")

    assert verdict(end, asked=Outcome.CANCELLED).outcome is Outcome.CANCELLED


def test_rank_that_the_kernel_killed_for_want_of_memory_is_told_from_other_kills():
    end = ended({0: EXIT_CODES[Outcome.COMMUNICATION], 1: -9}, out_of_memory=frozenset({1}))

    ending = verdict(end)

    assert ending.outcome is Outcome.HOST_OOM
    assert "killed rank 1; lower resources.micro_batch_tokens" in ending.reason


def test_full_disk_is_the_outcome_even_when_the_disk_took_no_error_json():
    ending = verdict(
        ended({0: EXIT_CODES[Outcome.DISK_FULL], 1: EXIT_CODES[Outcome.COMMUNICATION]})
    )

    assert ending.outcome is Outcome.DISK_FULL
    assert ending.reason.startswith("the disk took no more")


def test_failing_storage_that_takes_no_record_is_named_even_so():
    ending = verdict(ended({0: EXIT_CODES[Outcome.STORAGE], 1: EXIT_CODES[Outcome.COMMUNICATION]}))

    assert ending.outcome is Outcome.STORAGE
    assert ending.reason.startswith(f"the storage of {FOLDER} fails, and took no record of it; ")
    assert f"`df {FOLDER}`" in ending.reason

"""Where the seconds of trials went that took turns in few processes, from the records of a sweep.

    python benchmarks/trial_parts.py RUNS/SWEEP               # of a sweep that has run
    python benchmarks/packed_trials.py --ways mps,again       # prints it for each way

One line for the first trials of processes and one for those that followed in them: mean seconds of
each part, in the order in which they come.

    launch, rank, data, model, start   the journal's event `first_step` (docs/metrics.md)
    capture      beyond the pace of later steps until numbers are first read: warm-up, CUDA graphs
    steps        all other steps, at that pace
    evaluation   the evaluations
    checkpoint   the weights' final checkpoint
    result       closing the journal, result.json
    end          until the controller has written end.json: what the process puts back, who notices
    next         until the next launch in the process
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir

START = ("launch", "rank", "data", "model", "start")
PARTS = (*START, "capture", "steps", "evaluation", "checkpoint", "result", "end", "next")


def main() -> None:
    """Print the table of the sweep that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="folder of a sweep that has run")
    table(SweepDir(parser.parse_args().sweep))


def table(sweep: SweepDir) -> None:
    """Print mean seconds by part: of processes' first trials, and of those that followed."""
    of_process = defaultdict(list)
    for trial in sweep.trials():
        attempt, *resumed = trial.attempts()
        if resumed:
            continue
        of_process[registered(attempt)[0]].append((launched_at(attempt), trial, attempt))
    first, later = [], []
    for launches in of_process.values():
        launches.sort(key=lambda launch: launch[0])
        for number, (_, trial, attempt) in enumerate(launches):
            found = parts(trial, attempt)
            if number + 1 < len(launches):
                end = attempt.end() or {}
                found["next"] = launches[number + 1][0] - float(end["ended_at"])
            (later if number else first).append(found)
    print("| trials | n | " + " | ".join(f"{part} s" for part in PARTS) + " |")
    print("|---" * (2 + len(PARTS)) + "|")
    for name, rows in (("first of a process", first), ("later", later)):
        if rows:
            means = (statistics.mean([r[p] for r in rows if p in r] or [0.0]) for p in PARTS)
            cells = [name, str(len(rows)), *(f"{mean:.3f}" for mean in means)]
            print("| " + " | ".join(cells) + " |", flush=True)
    launches = [launch for of_one in of_process.values() for launch in of_one]
    begun = min(at for at, _, _ in launches)
    done = max(float((trial.result() or {})["finished_at"]) for _, trial, _ in launches)
    at_once = sum(row["steps"] for row in first + later) / (done - begun)
    print(f"\n{at_once:.1f} of {len(of_process)} processes took steps at a time, on average.")


def launched_at(attempt: AttemptDir) -> float:
    """Return when the controller launched an attempt, in seconds since 1970."""
    return float((attempt.launch() or {})["started_at"])


def parts(trial: TrialDir, attempt: AttemptDir) -> dict[str, float]:
    """Return the seconds of an attempt that was the only one of its trial, up to its end.json."""
    result, end = trial.result() or {}, attempt.end() or {}
    events = {line.event["event"]: line for line in attempt.lines() if line.event is not None}
    read = [(line.step, line.t / 1000) for line in attempt.lines() if line.metrics]
    begun, saved = events["first_step"].t / 1000, events["checkpoint"].t / 1000
    assert events["first_step"].event is not None
    seconds = events["first_step"].event["seconds"]
    evaluation = float(result["metrics"]["time/evaluate_s"])
    (first, first_at), (last, last_at) = read[0], read[-1]
    trained = last_at - evaluation
    # Numbers are read every some steps, and the second capture comes before they are first read.
    pace = (trained - first_at) / (last - first) if last > first else 0.0
    steps = min(pace * (last - 1), trained - begun)
    return {
        **{part: seconds.get(part, 0.0) for part in START},
        "capture": trained - begun - steps,
        "steps": steps,
        "evaluation": evaluation,
        "checkpoint": saved - last_at,
        "result": float(result["finished_at"]) - saved,
        "end": float(end["ended_at"]) - float(result["finished_at"]),
    }


if __name__ == "__main__":
    main()

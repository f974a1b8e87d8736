"""The report of a sweep among the artifacts, metrics and tags of its parent run."""

import json

import pytest

from orchestrator.tracking import sync_state
from orchestrator.tracking.sweep_report import MOST_TEXT, read_report
from orchestrator.tracking.sync_sweep import SweepSync


def write_report(sweep, *, alpha=0.3, why="residuals show no pattern"):
    curve = {"architecture": "dense", "outcome": "loss", "x": "total_params", "alpha": alpha}
    difference = {"architecture": "memory_plus", "measure": "flops", "difference": -0.1}
    content = {
        "question": "Which?",
        "answer": {"status": "told apart", "sentences": ["memory_plus is better."]},
        "rests_on": "Of 1 fitted curve: 1 adequate.",
        "next": [],
        "tables": [
            {"name": "fitted_curves", "rows": [{**curve, "verdict": "adequate", "why": why}]},
            {"name": "differences_at_equal_cost", "rows": [{**difference, "p_holm": None}]},
            {"name": "trials", "rows": [{"loss": 3.0}]},
        ],
    }
    folder = sweep.disk.path / "report"
    folder.mkdir(exist_ok=True)
    (folder / "report.html").write_text(f"<p>{alpha}")
    (folder / "report.json").write_text(json.dumps(content))


@pytest.fixture
def done(sweep, disk):
    spec = disk.make_spec(0)
    sweep.submit([spec])
    attempt = sweep.start(spec)
    sweep.measure(attempt, range(3))
    sweep.finish(attempt, step=2)
    sweep.submit([spec])
    return sweep


def test_the_parent_run_has_page_numbers_verdicts_and_answer(done, store):
    write_report(done)

    assert SweepSync(done.disk, store).round()

    parent = store.parent()
    assert parent.artifacts["report/report.html"] == b"<p>0.3"
    points = {p.key: p.value for p in parent.points}
    assert points["fit/dense/loss_against_total_params/alpha"] == 0.3
    assert points["difference/memory_plus/equal_flops/difference"] == -0.1
    assert not any("p_holm" in key or key.startswith("trials/loss") for key in points)
    assert parent.tags["memscale.answer"] == "told apart: memory_plus is better."
    verdict = parent.tags["memscale.verdict.fit/dense/loss_against_total_params"]
    assert verdict == "adequate: residuals show no pattern"
    assert parent.tags["mlflow.note.content"].startswith("Which?\n\n**Answer: told apart.**")


def test_a_report_is_sent_once_and_again_when_it_changed(done, store):
    write_report(done)
    assert SweepSync(done.disk, store).round()
    sent = store.log.count("log_folder")
    assert SweepSync(done.disk, store).round()
    assert store.log.count("log_folder") == sent == 1
    sent_digest = read_report(done.disk.path).digest
    assert sync_state.load_parent(done.disk, store.uri).report == sent_digest

    write_report(done, alpha=0.4)

    assert read_report(done.disk.path).digest != sent_digest
    assert SweepSync(done.disk, store).round()
    assert store.parent().artifacts["report/report.html"] == b"<p>0.4"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tables": [{}]}', '{"tables": 3}'])
def test_a_report_that_is_half_written_or_foreign_is_none(tmp_path, content):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text(content)

    assert read_report(tmp_path) is None
    assert read_report(tmp_path / "nowhere") is None


def test_tags_are_as_long_as_mlflow_takes_them(sweep):
    sweep.disk.path.mkdir(parents=True, exist_ok=True)
    write_report(sweep, why="x" * 9000)

    tags = read_report(sweep.disk.path).tags

    assert max(map(len, tags.values())) == MOST_TEXT

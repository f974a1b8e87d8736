"""Commits of data sets of the hub: asked for once, kept beside the sweep file."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from orchestrator.planning.pricing import make_plan
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.submit.submission import Submission
from orchestrator.sweep.expansion.hub_commits import HubCommits
from orchestrator.sweep.load import load_sweep
from orchestrator.sweep.parsing.diagnostics import Diagnostic
from orchestrator.sweep.parsing.yaml_node import YamlNode
from workloads.data.hub_source import HubSource
from workloads.data.readers.problems import NetworkError

NAME, COMMIT, OTHER = "hf:owner/name", "a" * 40, "b" * 40
PLACE = YamlNode(
    content=NAME, path="data.path", line=3, column=7, key_line=3, key_column=1, text=NAME
)
SWEEP = """
name: small
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
"""


@pytest.fixture
def hub():
    """What asks the hub; `asked` counts, and without a commit there is no network."""

    def current_commit(source):
        hub.asked += 1
        if hub.commit is None:
            raise NetworkError([f"{source}: the hub did not answer; check the network"])
        return hub.commit

    hub = SimpleNamespace(
        HubSource=HubSource, current_commit=current_commit, commit=COMMIT, asked=0
    )
    return hub


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in paths:
        path.write_text(SWEEP)
    return paths


def test_a_revision_is_asked_for_once(hub, files):
    first = HubCommits(files[0], files[:1], lambda: hub)
    assert first.pinned(NAME, PLACE) == f"hf:owner/name@{COMMIT}:train"
    hub.commit = OTHER
    again = HubCommits(files[0], files[:1], lambda: hub)
    assert again.pinned(NAME, PLACE) == f"hf:owner/name@{COMMIT}:train"
    assert (hub.asked, again.used) == (1, {NAME: COMMIT})
    # Another configuration is another source, and the first one stays.
    assert again.pinned(f"{NAME}/en@v1", PLACE) == f"hf:owner/name/en@{OTHER}:train"
    assert first.pinned(NAME, PLACE) == f"hf:owner/name@{COMMIT}:train"


def test_a_commit_that_is_written_out_asks_nobody(hub, files, tmp_path):
    hub.commit = None
    pinned = HubCommits(files[0], files[:1], lambda: hub)
    assert pinned.pinned(f"{NAME}@{OTHER}:test", PLACE) == f"{NAME}@{OTHER}:test"
    assert pinned.used == {}
    assert not list(tmp_path.glob("*.json"))


def test_all_files_of_a_sweep_read_one_commit(hub, files):
    one = HubCommits(files[1], files, lambda: hub).pinned(NAME, PLACE)
    hub.commit = OTHER
    assert HubCommits(files[0], files, lambda: hub).pinned(NAME, PLACE) == one
    # Pinned differently while they were apart: the first file decides for both.
    HubCommits(files[0], files[:1], lambda: hub).pinned(NAME, PLACE)
    both = {HubCommits(file, files, lambda: hub).pinned(NAME, PLACE) for file in files}
    assert both == {f"hf:owner/name@{OTHER}:train"}


def test_what_hinders_is_one_sentence(hub, files, tmp_path, monkeypatch):
    hub.commit = None
    refused = HubCommits(files[0], files, lambda: hub).pinned(NAME, PLACE)
    assert isinstance(refused, Diagnostic)
    assert "the hub did not answer" in str(refused)
    assert "name a commit (hf:owner/name@COMMIT:train): planning it needs no" in str(refused)

    def full(path, record):
        raise OSError(30, "Read-only file system")

    hub.commit = COMMIT
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.sweep.expansion.hub_commits.write_json", full)
        refused = HubCommits(files[0], files, lambda: hub).pinned(NAME, PLACE)
    assert "a.hub_commits.json beside the sweep file, and that cannot be written" in str(refused)
    assert f"write hf:owner/name@{COMMIT}:train" in str(refused)

    (tmp_path / "a.hub_commits.json").write_text(json.dumps({"commits": [1]}))
    with pytest.raises(StoreError, match=r"a\.hub_commits\.json: commits: must be a mapping"):
        HubCommits(files[0], files, lambda: hub).pinned(NAME, PLACE)


def test_a_submission_keeps_the_commits_that_its_trials_rest_on(hub, files, tmp_path):
    sweep = SweepDir(tmp_path / "runs" / "small")
    loaded = dataclasses.replace(load_sweep(files[0]), hub_commits={NAME: COMMIT})
    plan = make_plan(loaded, sweep.snapshot(), ())
    hub.commit = None

    Submission(plan=plan, runs=tmp_path / "runs").write_records(sweep)

    recorded = sweep.path / "sweep.yaml"
    pinned = HubCommits(recorded, [recorded], lambda: hub)
    assert pinned.pinned(NAME, PLACE) == f"hf:owner/name@{COMMIT}:train"

"""What is recorded of a machine, and what is not."""

import json
import subprocess
import sys

import pytest

from orchestrator.records import provenance


def git(folder, *arguments):
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-b", "trunk")
    (tmp_path / "model.py").write_text("width = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_the_record_is_json_and_names_what_matters():
    record = json.loads(json.dumps(provenance.record_environment()))

    assert record["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert record["packages"]["pydantic"]
    assert record["hardware"]["usable_threads"] >= 1
    assert record["hardware"]["memory_bytes"] > 2**28
    assert record["host"]


def test_no_environment_variable_is_recorded_but_the_named_ones(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_PASSWORD", "hunter2-hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    record = provenance.record_environment()

    assert "hunter2" not in json.dumps(record)
    assert record["variables"]["OMP_NUM_THREADS"] == "3"


def test_a_clean_checkout(repository):
    state = provenance.git_state(repository)

    assert len(state["commit"]) == 40
    assert (state["branch"], state["dirty"], state["diff"]) == ("trunk", False, "")
    assert state["diff_sha256"] is None


def test_changed_code_shows_with_its_diff(repository):
    (repository / "model.py").write_text("width = 2\n")
    first = provenance.git_state(repository)
    (repository / "model.py").write_text("width = 3\n")
    second = provenance.git_state(repository)

    assert first["dirty"]
    assert "+width = 2" in first["diff"]
    assert first["diff_sha256"] != second["diff_sha256"]
    assert first["commit"] == second["commit"]


@pytest.mark.parametrize("setting", ["diff.noprefix", "diff.mnemonicPrefix"])
def test_a_diff_names_files_alike_whatever_git_is_set_to(setting, repository):
    git(repository, "config", setting, "true")
    (repository / "model.py").write_text("width = 2\n")

    diff = provenance.git_state(repository)["diff"]

    assert diff.startswith("diff --git a/model.py b/model.py\n")


def test_new_files_are_part_of_the_state(repository):
    (repository / "extra.py").write_text("a = 1\n")
    first = provenance.git_state(repository)
    (repository / "extra.py").write_text("a = 2\n")

    assert first["dirty"]
    assert first["untracked"] == 1
    assert provenance.git_state(repository)["diff_sha256"] != first["diff_sha256"]


def test_a_long_diff_is_cut_and_its_hash_is_of_all_of_it(repository):
    (repository / "model.py").write_text("x = 1\n" * 50_000)
    first = provenance.git_state(repository)
    (repository / "model.py").write_text("x = 1\n" * 50_000 + "y = 2\n")
    second = provenance.git_state(repository)

    assert len(first["diff"]) == provenance.MAX_DIFF_CHARACTERS < first["diff_characters"]
    assert first["diff_sha256"] != second["diff_sha256"]


def test_code_outside_a_repository(tmp_path):
    assert "not a git repository" in provenance.git_state(tmp_path)["problem"]


def test_code_installed_into_somebody_elses_repository(repository):
    installed = repository / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "code.py").write_text("")

    assert provenance.git_state(installed) == {"problem": "installed without its repository"}


def test_a_machine_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "git" in provenance.git_state(tmp_path)["problem"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:pw12@host/db", "postgresql://***@host/db"),
        ("API_KEY = 'abcd1234'", "API_KEY = '***'"),
        ('"hf_token": "abcd1234",', '"hf_token": "***",'),
        ("+    password=correcthorse", "+    password=***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("use hf_abcdefghijklmnop here", "use *** here"),
        ("cookie eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2ln;", "cookie ***;"),
        ("passphrase: open-sesame", "passphrase: ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "***"),
        ("n_tokens: int = 5", "n_tokens: int = 5"),
        ("lr = 3e-3", "lr = 3e-3"),
    ],
)
def test_secrets_are_replaced(text, shown):
    assert provenance.redacted(text) == shown


def test_secrets_on_a_command_line_are_replaced():
    argv = [
        "memscale",
        "submit",
        "a.yaml",
        "--token",
        "abcd1234",
        "--api-key=xyz987",
        "--runs",
        "runs",
    ]

    assert provenance.redacted_argv(argv) == [
        *argv[:4],
        "***",
        "--api-key=***",
        "--runs",
        "runs",
    ]


def test_nvidia_smi_is_read():
    text = "NVIDIA H200, GPU-1234, 143771, 570.1\n[Insufficient Permissions], x\n"

    assert provenance.parse_nvidia_smi(text) == [
        {
            "name": "NVIDIA H200",
            "uuid": "GPU-1234",
            "memory_bytes": 143771 * 2**20,
            "driver": "570.1",
        }
    ]

"""From the command line's argument to text; what is refused before any YAML is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.sweep import Sweep
from orchestrator.sweep_files import find

Load = Callable[..., Sweep]


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        find.read(find.find(path))
    (problem,) = caught.value.problems
    return str(problem).removeprefix(str(path))


def test_a_bundled_sweep_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert find.find(Path("quickstart")) == find.bundled()["quickstart"]
    assert find.find(Path("quickstart.yaml")) == find.bundled()["quickstart"]


def test_a_file_of_ones_own_wins_over_a_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.yaml").write_text("name: mine")

    assert find.find(Path("quickstart.yaml")) == Path("quickstart.yaml")


def test_a_missing_file_lists_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "recall.yaml").write_text("name: recall")
    message = refused(tmp_path / "recal.yaml")

    assert message.startswith(
        ": no such file; did you mean recall.yaml? bundled sweeps, by name alone: "
    )
    assert "quickstart" in message


def test_a_name_that_is_nearly_bundled_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert "did you mean quickstart?" in refused(Path("quikstart"))


def test_a_folder_is_refused_with_its_files(tmp_path: Path) -> None:
    assert refused(tmp_path) == ": is a folder; name a file; it holds no .yaml file"
    (tmp_path / "a.yaml").write_text("name: a")
    assert refused(tmp_path) == ": is a folder; name one of its files: a.yaml"


def test_ten_megabytes_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"# padding\n" * (2**20))
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("was read"))

    assert refused(file) == (
        ": 10.0 MiB is too large for a sweep file, the limit is 1 MiB; "
        "keep data in a file of its own and name it under data:"
    )


def test_an_unreadable_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.yaml"
    file.write_text("name: secret")

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)

    assert refused(file) == ": cannot be read (Permission denied); check its permissions"


def test_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path, load: Load) -> None:
    text = "\ufeff# Question: why?\n\nname: test\n"
    (tmp_path / "windows.yaml").write_bytes(text.replace("\n", "\r\n").encode())

    assert find.read(tmp_path / "windows.yaml") == text.replace("\n", "\r\n").removeprefix("\ufeff")
    assert find.question(find.read(tmp_path / "windows.yaml")) == "why?"


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("# Question: does it help?\nname: x", "does it help?"),
        (
            "# Question: does it help\n#   at equal FLOPs?\n# Run: memscale\nname: x",
            "does it help at equal FLOPs?",
        ),
        ("# Question: does it help?\n#\n# Then more words.\nname: x", "does it help?"),
        ("# A header\n\n# Question: late?\nname: x", "late?"),
        ("name: x\n# Question: too late?", None),
        ("# Question:\nname: x", None),
        ("name: x", None),
    ],
)
def test_the_question_is_the_comment_at_the_top(text: str, question: str | None) -> None:
    assert find.question(text) == question

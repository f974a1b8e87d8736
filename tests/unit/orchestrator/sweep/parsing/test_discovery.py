"""From the command line's argument to text; what is refused before any YAML is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.sweep.load import Sweep
from orchestrator.sweep.parsing import discovery

Load = Callable[..., Sweep]


def refused(path: Path) -> str:
    _, (problem,) = discovery.sources([path])
    return str(problem).removeprefix(str(path))


def test_a_bundled_sweep_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert discovery.files(Path("quickstart")) == [discovery.bundled()["quickstart"]]
    assert discovery.files(Path("quickstart.yaml")) == [discovery.bundled()["quickstart"]]


def test_a_file_of_ones_own_wins_over_a_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.yaml").write_text("name: mine")

    assert discovery.files(Path("quickstart.yaml")) == [Path("quickstart.yaml")]


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


def test_a_folder_is_its_yaml_files_by_name(tmp_path: Path) -> None:
    assert refused(tmp_path) == ": is a folder without a .yaml file; name a file, or put one in it"
    for name in ("b.yaml", "a.yml", "notes.md", ".#b.yaml"):
        (tmp_path / name).write_text("name: a")
    (tmp_path / "deeper.yaml").mkdir()

    assert discovery.files(tmp_path) == [tmp_path / "a.yml", tmp_path / "b.yaml"]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a stand-in for the sweeps of the package, seen from another folder."""
    root = tmp_path / "site" / "sweeps"
    (root / "smoke").mkdir(parents=True)
    (root / "__pycache__").mkdir()
    for name in ("quickstart.yaml", "smoke/dense.yaml", "smoke/table.yaml"):
        (root / name).write_text("name: shipped")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(discovery, "_root", lambda: root)
    return root


def test_a_bundled_folder_is_known_by_its_name(shipped: Path) -> None:
    both = [shipped / "smoke" / "dense.yaml", shipped / "smoke" / "table.yaml"]

    assert list(discovery.bundled()) == ["quickstart", "smoke"]
    assert discovery.files(Path("smoke")) == both
    assert (
        discovery.files(Path("smoke/dense"))
        == discovery.files(Path("smoke/dense.yaml"))
        == both[:1]
    )
    assert "bundled sweeps, by name alone: quickstart, smoke" in refused(Path("smoke/mose"))


def test_a_folder_of_ones_own_wins_where_it_holds_sweeps(shipped: Path) -> None:
    own = Path("smoke")
    own.mkdir()
    assert discovery.files(own) == sorted((shipped / "smoke").iterdir())

    (own / "mine.yaml").write_text("name: mine")
    assert discovery.files(own) == [own / "mine.yaml"]


def test_everything_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    good, empty = tmp_path / "good.yaml", tmp_path / "empty.yaml"
    good.write_text("name: good")
    empty.write_text("")

    sources, problems = discovery.sources([good, empty, tmp_path / "absent.yaml", tmp_path])

    assert [source.label for source in sources] == ["good.yaml"]
    assert [str(p).removeprefix(str(tmp_path)).split(";")[0] for p in problems] == [
        "/empty.yaml: is empty",
        "/absent.yaml: no such file",
        "/empty.yaml: is named twice",
        "/good.yaml: is named twice",
    ]
    assert "memscale plan --show quickstart shows a sweep that works" in str(problems[0])


def test_files_of_the_same_name_are_called_by_their_paths(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.yaml").write_text("name: x")

    sources, _ = discovery.sources([tmp_path / "one", tmp_path / "two"])

    assert [s.label for s in sources] == [str(tmp_path / f / "a.yaml") for f in ("one", "two")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_was_joined_can_be_taken_apart(tmp_path: Path, end: str) -> None:
    texts = ["# Question: one?\nname: a\n", "---\nname: b", "name: c\n\n\n"]
    parts = [
        discovery.Source(tmp_path / f"{i}.yaml", text, f"{i}.yaml") for i, text in enumerate(texts)
    ]
    joined = discovery.joined(parts).replace("\n", end)

    again = discovery.split(tmp_path / "sweep.yaml", joined)

    assert discovery.question(joined) == "one?"
    assert [part.label for part in again] == ["0.yaml", "1.yaml", "2.yaml"]
    assert [part.text.split() for part in again] == [text.split() for text in texts]
    for part in again:
        assert joined.splitlines()[part.lines_above - 1] == f"--- # file: {part.label}"
    assert discovery.joined(
        discovery.split(tmp_path / "sweep.yaml", discovery.joined(parts))
    ) == discovery.joined(parts)


def test_one_file_is_recorded_as_it_is(tmp_path: Path) -> None:
    assert discovery.joined(discovery.split(tmp_path / "a.yaml", "name: a")) == "name: a"


@pytest.mark.parametrize(
    ("asked", "together"),
    [
        ([None, None], None),
        (["Does it help?", None], "Does it help?"),
        (["Does it help?", "Does it help?"], "Does it help?"),
        (["Does it help?", "how much", "Why?"], "Does it help? how much. Why?"),
    ],
)
def test_each_question_is_asked_once(asked: list[str | None], together: str | None) -> None:
    texts = ["name: x" if one is None else f"# Question: {one}\nname: x" for one in asked]

    assert discovery.questions(texts) == together


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

    assert discovery.read(tmp_path / "windows.yaml") == text.replace("\n", "\r\n").removeprefix(
        "\ufeff"
    )
    assert discovery.question(discovery.read(tmp_path / "windows.yaml")) == "why?"


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
    assert discovery.question(text) == question

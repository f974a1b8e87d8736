import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from orchestrator.cli.app import app
from workloads.data.preparation import prepare as preparing
from workloads.data.preparation import tokenise
from workloads.data.preparation.manifest import TokenManifest, load_split
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest
from workloads.data.readers.problems import DataError
from workloads.data.token_shards import index_name
from workloads.data.tokenizer import load, train

CUT = {"_BATCH_CHARS": 2_000, "COMMIT_BYTES": 5_000}
"""Small enough for a small corpus to have several batches and commits."""


def document(i: int) -> str:
    return f"Document {i}.\nIt says {'word ' * (i % 17)}{i * i} and ends – ü."


def write_corpus(folder: Path, n=300) -> tuple[str, ...]:
    half = n // 2
    lines = [json.dumps({"text": document(i)}) + "\n" for i in range(n)]
    (folder / "a.jsonl").write_text("".join(lines[:half]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[half:]).encode(), mtime=0))
    return str(folder / "a.jsonl"), str(folder / "b.jsonl.gz")


TRAINED = []
"""The file of one tokenizer for all tests: training it takes longer than they do."""


@pytest.fixture(autouse=True, scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train(map(document, range(100)), vocab_size=300).save(path)
    TRAINED[:] = [str(path)]


def run(out: Path, *sources: str, **kwargs) -> TokenManifest:
    # One process: what several change is a test of its own, and starting one takes most of a run.
    given = {"tokenizer": TRAINED[0], "valid_share": 0.1, "workers": 1, **kwargs}
    return prepare(PrepareRequest(sources=sources, out=out, **given), lambda line: None)


def texts(out: Path, name: str) -> list[str]:
    manifest = TokenManifest.load(out / "manifest.json")
    tokenizer = load(out / manifest.tokenizer["file"], vocab_size=None)
    shards = load_split(out, manifest, name)
    stream = shards.windows(np.array([0]), len(shards))[0]
    starts = np.fromfile(out / index_name(name), dtype="<i8")
    assert (stream[starts] == tokenizer.separator).all()
    assert starts[0] == 0
    return [tokenizer.decode(part[1:]) for part in np.split(stream, starts[1:])]


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_a_held_out_file_that_is_trained_on_is_refused(tmp_path):
    a, b = write_corpus(tmp_path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(a).read_bytes())
    for held_out, same in ((a, ""), (str(copy), f", as {a}")):
        with pytest.raises(DataError) as caught:
            run(tmp_path / "out", a, b, valid=(held_out,))
        assert str(caught.value) == (
            f"--valid: {held_out} is trained on too{same}; name the files of SOURCE without it, or "
            "move it elsewhere"
        )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def sources(tmp_path) -> tuple[str, ...]:
    return write_corpus(tmp_path)


def test_every_document_is_in_one_split_and_comes_back(sources, tmp_path):
    manifest = run(tmp_path / "out", *sources)
    train, valid = texts(tmp_path / "out", "train"), texts(tmp_path / "out", "valid")
    assert sorted(train + valid) == sorted(map(document, range(300)))
    assert train == [document(i) for i in range(300) if document(i) in set(train)]
    assert 10 < len(valid) < 60
    assert [source["documents"] for source in manifest.sources] == [150, 150]
    for name, split in (("train", train), ("valid", valid)):
        counts = manifest.splits[name]
        assert counts["bytes"] == sum(len(text.encode()) for text in split)
        assert counts["documents"] == len(split)


def test_what_is_too_small_is_told(sources, tmp_path):
    told: list[str] = []
    asked = PrepareRequest(sources=sources, out=tmp_path / "out", tokenizer="bpe:50000")
    manifest = prepare(asked, told.append)

    size, held_out = manifest.vocab_size, manifest.splits["valid"]["tokens"]
    assert f"tokenizer: {size:,} tokens; vocab_size 50,000 leaves" in "\n".join(told)
    assert f"held-out text: {held_out:,} tokens are few" in "\n".join(told)


def test_several_processes_write_the_same_bytes_as_one(sources, tmp_path, monkeypatch):
    run(tmp_path / "alone", *sources)
    for name, value in CUT.items():
        monkeypatch.setattr(tokenise, name, value)
    run(tmp_path / "several", *sources, workers=3)
    assert contents(tmp_path / "several") == contents(tmp_path / "alone")


KILLED = """
import os, signal, sys
from pathlib import Path
from workloads.data.preparation import tokenise
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest

tokenise._BATCH_CHARS, tokenise.COMMIT_BYTES = 2_000, 5_000
out, appends, tokenizer, *sources = sys.argv[1:]
write, left = tokenise.ShardWriter.append_documents, int(appends)


def append(self, tokens, lengths):
    global left
    write(self, tokens, lengths)
    self._file.flush()
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)


tokenise.ShardWriter.append_documents = append
request = PrepareRequest(sources=tuple(sources), out=Path(out), tokenizer=tokenizer, valid_share=0.1, workers=1)
prepare(request, print)
"""


def test_a_killed_run_goes_on_and_writes_the_same_bytes(sources, tmp_path):
    run(tmp_path / "alone", *sources)
    out = tmp_path / "out"
    for appends in ("9", "11"):
        command = [sys.executable, "-c", KILLED, str(out), appends, TRAINED[0], *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (out / "manifest.json").exists()
    assert "going on after" in done.stdout
    run(out, *sources)
    assert contents(out) == contents(tmp_path / "alone")


HELD = """
import sys, time
from pathlib import Path
from workloads.data.preparation import tokenise
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest

tokenise._BATCH_CHARS, tokenise.COMMIT_BYTES = 2_000, 5_000
out, go, tokenizer, *sources = sys.argv[1:]
save = tokenise.Progress.save


def saved(self, folder):
    save(self, folder)
    while not Path(go).exists():
        time.sleep(0.01)


tokenise.Progress.save = saved
request = PrepareRequest(sources=tuple(sources), out=Path(out), tokenizer=tokenizer, valid_share=0.1, workers=1)
prepare(request, print)
"""


def test_a_second_run_waits_for_the_first(sources, tmp_path):
    first = run(tmp_path / "alone", *sources)
    out, go = tmp_path / "out", tmp_path / "go"
    command = [sys.executable, "-c", HELD, str(out), str(go), TRAINED[0], *sources]
    other = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not (out / "progress.json").exists():
            assert other.poll() is None
            time.sleep(0.01)
        said: list[str] = []

        def log(line: str) -> None:
            said.append(line)
            go.touch()

        asked = {"tokenizer": TRAINED[0], "valid_share": 0.1, "workers": 1}
        assert prepare(PrepareRequest(sources=sources, out=out, **asked), log) == first
        assert other.wait(timeout=60) == 0
    finally:
        other.kill()
    assert f"waiting: another process prepares {out}" in said
    assert said[-1] == f"{out} is complete already"
    assert contents(out) == contents(tmp_path / "alone")


def without_lock(monkeypatch, number: int) -> None:
    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(preparing, "hold_lock", fails)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_to_is_one_sentence(
    sources, tmp_path, monkeypatch, number
):
    without_lock(monkeypatch, number)
    with pytest.raises(DataError, match=r"out: cannot be written \(.*\); change --out to a folder"):
        run(tmp_path / "out", *sources)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told(sources, tmp_path, monkeypatch, number):
    without_lock(monkeypatch, number)
    said: list[str] = []
    asked = {"tokenizer": TRAINED[0], "valid_share": 0.1, "workers": 1}
    first = prepare(PrepareRequest(sources=sources, out=tmp_path / "out", **asked), said.append)
    assert sum("out: has no lock" in line for line in said) == 1
    assert TokenManifest.load(tmp_path / "out" / "manifest.json") == first


def test_other_faults_of_the_storage_are_not_ours(sources, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        run(tmp_path / "file" / "out", *sources)
    without_lock(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "out", *sources)


def test_a_complete_folder_may_be_read_only(sources, tmp_path, monkeypatch):
    first = run(tmp_path / "out", *sources)
    without_lock(monkeypatch, errno.EROFS)
    assert run(tmp_path / "out", *sources) == first


def test_nothing_is_written_beside_the_folder_and_its_lock_is_no_content(sources, tmp_path):
    """So `--out` may be a mount point, and its name may begin like the sources'."""
    before = set(tmp_path.iterdir())
    manifest = run(tmp_path / "a-out", str(tmp_path / "*"))
    assert set(tmp_path.iterdir()) == before | {tmp_path / "a-out"}
    assert len(manifest.sources) == 2
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / ".lock").touch()
    assert run(tmp_path / "given", *sources) == manifest


def test_what_is_refused_gets_no_lock(sources, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(DataError, match="holds something else"):
        run(tmp_path / "out", *sources)
    assert contents(tmp_path / "out") == {"mine": b""}


@pytest.mark.parametrize("failing", ["unlink", "replace"])
def test_a_run_killed_while_it_claims_the_folder_goes_on(sources, tmp_path, monkeypatch, failing):
    out = tmp_path / "out"
    fail(out)
    (out / "tokenizer.tmp").touch()

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, failing, killed)
        with pytest.raises(KeyboardInterrupt):
            run(out, *sources)
    assert run(out, *sources) == run(tmp_path / "alone", *sources)
    assert contents(out) == contents(tmp_path / "alone")


def test_shards_of_another_size_than_recorded_get_no_manifest(sources, tmp_path, monkeypatch):
    def torn(folder, *args, **kwargs):
        done = tokenise.tokenise(folder, *args, **kwargs)
        with (folder / "train-00000.bin").open("r+b") as shard:
            shard.truncate(1_000)
        return done

    monkeypatch.setattr(preparing, "tokenise", torn)
    with pytest.raises(DataError, match=r"train-00000\.bin: has 1,000 bytes"):
        run(tmp_path / "out", *sources)
    assert not (tmp_path / "out" / "manifest.json").exists()


def fail(out: Path) -> None:
    """Leave an attempt that came to nothing."""
    bad = out.with_name("bad.jsonl")
    bad.write_text('{"body": "a"}\n')
    with pytest.raises(DataError, match="has no field 'text'"):
        run(out, str(bad), tokenizer="bpe:300")
    assert (out / "request.json").exists()


def test_what_somebody_put_beside_a_failed_attempt_stays(sources, tmp_path):
    out = tmp_path / "out"
    fail(out)
    (out / "llama.json").write_bytes(Path(TRAINED[0]).read_bytes())
    (out / "notes").mkdir()
    with pytest.raises(DataError, match=r"and llama\.json, notes, which is not of it; move that"):
        run(out, *sources)
    (out / "notes").rmdir()
    # A name of ours is theirs too, if they name it.
    (out / "llama.json").rename(out / "tokenizer.json")
    with pytest.raises(DataError, match=r"and tokenizer\.json, which is not of it"):
        run(out, *sources, tokenizer=str(out / "tokenizer.json"))
    assert (out / "tokenizer.json").read_bytes() == Path(TRAINED[0]).read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"request\.json: is not JSON"),
        ('{"my": "api request"}', "another program"),
        ("[]", "another program"),
    ],
)
def test_a_request_that_is_not_ours_is_kept(sources, tmp_path, content, message):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "request.json").write_text(content)
    with pytest.raises(DataError, match=message):
        run(tmp_path / "out", *sources)
    assert contents(tmp_path / "out") == {"request.json": content.encode()}


def test_a_file_that_several_sources_name_is_read_once(sources, tmp_path):
    (tmp_path / "link.jsonl").symlink_to(sources[0])
    named = (sources[0], str(tmp_path / "?.jsonl*"), str(tmp_path / "link.jsonl"))
    assert run(tmp_path / "x", *named) == run(tmp_path / "y", *sources)


def word_level(path: Path, *words: str) -> str:
    vocabulary = {word: number for number, word in enumerate(("[UNK]", "[SEP]", *words))}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.save(str(path))
    return str(path)


def test_a_tokenizer_without_tokens_for_the_text_is_refused(tmp_path):
    words = tmp_path / "words.jsonl"
    words.write_text(
        "".join(json.dumps({"text": f"{'up and down ' * 70}{i}"}) + "\n" for i in range(90))
    )
    short = word_level(tmp_path / "t.json", "up", "and")
    with pytest.raises(DataError, match=r"t\.json: has no tokens for 44\.\d% of the text"):
        run(tmp_path / "out", str(words), tokenizer=short)
    told: list[str] = []
    asked = {"tokenizer": word_level(tmp_path / "t.json", "up", "and", "down"), "valid_share": 0.1}
    prepare(PrepareRequest(sources=(str(words),), out=tmp_path / "out", **asked), told.append)
    assert "tokenizer: has no tokens for 0.30% of the text" in "\n".join(told)


def test_the_same_again_does_nothing_and_another_corpus_is_refused(sources, tmp_path):
    out = tmp_path / "out"
    first = run(out, *sources, tokenizer="bpe:290")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert first.vocab_size == 290
    assert run(out, *sources, tokenizer="bpe:290") == first
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(DataError, match="holds tokens of other sources or settings"):
        run(out, *sources)
    with pytest.raises(DataError, match="exists and holds something else"):
        run(tmp_path, *sources)


def test_a_folder_is_taken_with_all_its_text(sources, tmp_path):
    (tmp_path / "notes.md").write_text("not a corpus")
    given, whole = run(tmp_path / "x", *sources), run(tmp_path / "y", str(tmp_path / "*.jsonl*"))
    assert given == whole
    corpus = tmp_path / "corpus" / "deep"
    corpus.mkdir(parents=True)
    write_corpus(corpus)
    assert run(tmp_path / "z", str(corpus.parent)) == given


def test_held_out_files_are_held_out_whole(sources, tmp_path):
    run(tmp_path / "out", sources[0], valid=(sources[1],))
    assert texts(tmp_path / "out", "valid") == [document(i) for i in range(150, 300)]
    assert texts(tmp_path / "out", "train") == [document(i) for i in range(150)]


def test_evaluation_items_in_the_text_are_reported(tmp_path):
    asked = "Which river flows through the old town of Warsaw and into the sea?"
    texts = [
        f"An unrelated text of some length, number {i}, about nothing at all." for i in range(9)
    ]
    path = tmp_path / "c.jsonl"
    path.write_text(
        "".join(json.dumps({"text": t}) + "\n" for t in [*texts, "Q: " + asked.upper()])
    )
    items = tmp_path / "qa.jsonl"
    clean = "Who wrote the longest poem about the river that flows through town?"
    items.write_text("".join(json.dumps({"question": q}) + "\n" for q in (clean, asked, "Who?")))
    manifest = run(tmp_path / "out", str(path), against=(str(items),), valid_share=0.3)
    (file,) = manifest.contamination
    assert (file["items"], file["too_short"], file["contaminated"]) == (3, 1, 1)
    report = (tmp_path / "out" / "contamination.jsonl").read_text()
    assert json.loads(report) == {"file": "qa.jsonl", "line": 2, "share": 1.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no text"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', r":2: byte 11 of the line is not UTF-8 \(0xff\)"),
        (b'{"text": "a"}\n{"text": "\\ud800"}\n', r":2: holds \\ud800, half a character"),
        (b'{"text": "a"}\n{"body": "b"}\n', ":2: has no field 'text'; it has 'body'"),
        (b'{"text": "one document"}\n', "none of 1 documents fell into the split"),
    ],
)
def test_bad_text_is_one_sentence_and_leaves_nothing_to_use(tmp_path, content, message):
    path = tmp_path / "c.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        run(tmp_path / "out", str(path))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_mended_file_may_be_prepared_into_the_same_folder(sources, tmp_path):
    path = Path(sources[0])
    whole = path.read_text()
    path.write_text(whole + "no JSON\n")
    with pytest.raises(DataError, match=r"a\.jsonl:151: is not JSON"):
        run(tmp_path / "out", *sources)
    path.write_text(whole)
    assert run(tmp_path / "out", *sources) == run(tmp_path / "other", *sources)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"tokenizer": None}, "--tokenizer: missing; give a file, or bpe:16384"),
        ({"tokenizer": "bpe:x"}, "must be bpe:SIZE"),
        ({"tokenizer": "none.json"}, "^--tokenizer: none.json does not exist"),
        ({"valid_share": 1.0}, "--valid-share: must lie between 0 and 1, got 1.0"),
        ({"vocab_size": 300}, "--vocab-size: is for tokens"),
    ],
)
def test_bad_options_say_what_to_write(sources, tmp_path, kwargs, message):
    with pytest.raises(DataError, match=message):
        run(tmp_path / "out", *sources, **kwargs)


@pytest.mark.parametrize("change", [-2, 2])
def test_a_half_written_shard_is_never_used(sources, tmp_path, change):
    manifest = run(tmp_path / "out", *sources)
    shard = tmp_path / "out" / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:change] if change < 0 else shard.read_bytes() + b"xx")
    with pytest.raises(DataError, match=r"train-00000\.bin: has .* half-written or damaged"):
        load_split(tmp_path / "out", manifest, "train")


def test_the_command_prints_counts_and_what_is_wrong(sources, tmp_path):
    out = tmp_path / "out"
    command = ["data", "prepare", *sources, "--out", str(out)]
    done = CliRunner().invoke(app, [*command, "--tokenizer", TRAINED[0]])
    assert done.exit_code == 0, done.output
    assert "documents" in done.stdout
    assert f"{{source: tokens, path: {out}}}" in done.stdout.replace("\n", "")
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr) == (
        2,
        "--tokenizer: missing; give a file, or bpe:16384 to train one of that size\n",
    )

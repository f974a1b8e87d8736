"""Against a server of HTTP that speaks what the hub's own libraries ask of it."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow
import pytest
from pyarrow import parquet

from workloads.data.cache import cached_folder
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest
from workloads.data.readers.problems import DataError, NetworkError
from workloads.data.tokenizer import train

FIRST, SECOND = "a" * 40, "b" * 40
TOKEN = "hf_neverToBeWrittenDown"
CARD = b"""---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train-*}
  - {split: validation, path: en/valid.jsonl}
- config_name: de
  data_files: de/*.csv
---
"""


def document(i: int) -> str:
    return f"Document {i} says {'word ' * (i % 13)}{i * i}."


def lines(*numbers: int) -> bytes:
    return "".join(json.dumps({"text": document(i)}) + "\n" for i in range(*numbers)).encode()


def table(*numbers: int) -> bytes:
    buffer = io.BytesIO()
    rows = pyarrow.table({"text": [document(i) for i in range(*numbers)]})
    parquet.write_table(rows, buffer, row_group_size=20)
    return buffer.getvalue()


FILES = {
    "README.md": CARD,
    "en/train-0.jsonl.gz": gzip.compress(lines(0, 90), mtime=0),
    "en/train-1.jsonl": lines(90, 180),
    "en/train-2.parquet": table(180, 270),
    "en/valid.jsonl": lines(270, 300),
    "de/x.csv": b"text\neins\n",
}


class Hub:
    """Repositories by name: commits with their files, and the commit that `main` is."""

    def __init__(self) -> None:
        self.commits = {FIRST: FILES}
        self.main, self.gated = FIRST, False
        self.read: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, content = hub.answer(self, body)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_POST = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request, body: bytes):
        url = urlsplit(request.path)
        parts = unquote(url.path).strip("/").split("/")
        is_api = parts[0] == "api"
        owner, name, verb, revision, *rest = [*parts[1 + is_api :], "", "", "", "", ""]
        if (owner, name) != ("org", "name"):
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        allowed = request.headers.get("authorization") == f"Bearer {TOKEN}"
        if self.gated and not allowed and verb == "resolve":
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        commit = self.main if revision in ("", "main") else revision
        if commit not in self.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files, path = self.commits[commit], "/".join(rest).strip("/")
        if is_api:
            return self._api(verb, files, path, commit, url.query, body)
        if path not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        content = files[path]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
        if request.command == "GET":
            self.read.append(f"{commit[0]}:{path}")
        wanted = request.headers.get("range")
        if wanted is None:
            return 200, headers, content
        first, last = wanted.removeprefix("bytes=").split("-")
        part = content[int(first) : int(last or len(content)) + 1]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return 206, headers, part

    def _api(self, verb, files, path, commit, query, body):
        if verb in ("", "revision"):
            siblings = [{"rfilename": name} for name in files]
            found = {"_id": "1", "id": "org/name", "sha": commit, "siblings": siblings, "tags": []}
        elif verb == "tree":
            deep, prefix = "recursive=true" in query.lower(), f"{path}/" if path else ""
            inside = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
            folders = sorted({name.split("/")[0] for name in inside if "/" in name})
            found = [{"type": "directory", "oid": "0", "path": prefix + one} for one in folders]
            shown = [name for name in inside if deep or "/" not in name]
            found += [self._entry(prefix + name, files) for name in shown]
        else:
            asked = json.loads(body) if body.startswith(b"{") else parse_qs(body.decode())
            found = [self._entry(name, files) for name in asked["paths"] if name in files]
        return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()

    def _entry(self, path, files):
        digest, size = hashlib.sha256(files[path]).hexdigest(), len(files[path])
        lfs = {"oid": digest, "size": size, "pointerSize": 1}
        return {"type": "file", "oid": digest[:40], "size": size, "path": path, "lfs": lfs}


KILLED_AFTER_WRITES = """
import json, os, signal, sys
from pathlib import Path
from workloads.data.preparation import tokenise

tokenise._BATCH_CHARS, tokenise.COMMIT_BYTES = 1_000, 2_000
write, left = tokenise.ShardWriter.append_documents, int(sys.argv[1])


def append(self, tokens, lengths):
    global left
    write(self, tokens, lengths)
    left -= 1
    if not left:
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


tokenise.ShardWriter.append_documents = append
"""
"""Begins a program that is killed after as many writes as its first argument says; 0 is never."""


PREPARE = """
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest
from workloads.data.readers.problems import DataError, NetworkError

for tokenizer, out, source in json.loads(sys.argv[2]):
    try:
        prepare(
            PrepareRequest(sources=(source,), out=Path(out), tokenizer=tokenizer, valid_share=0.1, workers=1),
            print,
        )
    except DataError as error:
        print("DataError", json.dumps(str(error)))
"""


SUBMIT = """
from orchestrator.planning.input_data import check_data, prepare_data
from orchestrator.planning.pricing import make_plan
from orchestrator.records.errors import ConfigError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep
from orchestrator.tracking.corpus_dataset import trial_datasets

folder = Path(sys.argv[2])
try:
    sweep = load_sweep(folder / "sweep.yaml")
    plan = make_plan(sweep, SweepDir(folder / "runs").snapshot(), ())
    check_data(plan)
    (data,) = trial_datasets(sweep.trials[0])
    print("trial", sweep.trials[0].trial_id, sweep.trials[0].data["path"], data.name, data.source)
    prepare_data(plan, folder / "cache", print)
except ConfigError as error:
    print("ConfigError", error)
"""
SWEEP = """
name: small
data: {{source: text, path: {}, valid_share: 0.1, tokenizer: tokenizer.json, vocab_size: 300}}
train: {{tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}}
model: {{architecture: dense, preset: d16}}
"""


@pytest.fixture
def hub():
    hub = Hub()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


@pytest.fixture
def run(tmp_path):
    train(map(document, range(60)), vocab_size=300).save(tmp_path / "tokenizer.json")

    def run(endpoint: str, *sources, out="out", kill_after=0, token=None):
        """Prepare each source in one process of its own: the library reads its endpoint once."""
        calls = [(str(tmp_path / "tokenizer.json"), str(tmp_path / out), one) for one in sources]
        arguments = [KILLED_AFTER_WRITES + PREPARE, str(kill_after), json.dumps(calls)]
        return run_python(arguments, endpoint, tmp_path / "home", token)

    return run


def run_python(arguments, endpoint, home, token=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    environment |= {} if token is None else {"HF_TOKEN": token}
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def submit(tmp_path):
    """Plan a sweep of a source and prepare its data, as `memscale submit` does."""
    train(map(document, range(60)), vocab_size=300).save(tmp_path / "tokenizer.json")

    def submit(endpoint: str, source: str, *, kill_after=0):
        (tmp_path / "sweep.yaml").write_text(SWEEP.format(source))
        arguments = [KILLED_AFTER_WRITES + SUBMIT, str(kill_after), str(tmp_path)]
        return run_python(arguments, endpoint, tmp_path / "home")

    return submit


def of_trial(done) -> list[str]:
    """What a plan said of its trial: id, path, and the data set of MLflow."""
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("trial ")] or [done.stderr]
    return line.split()[1:]


def shards(out: Path) -> dict[str, bytes]:
    named = ("manifest.json", "request.json")
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name not in named}


def from_disk(tmp_path: Path) -> dict[str, bytes]:
    """The shards of the same files, prepared where they lie."""
    for name, content in FILES.items():
        (tmp_path / "disk" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "disk" / name).write_bytes(content)
    request = PrepareRequest(
        sources=(str(tmp_path / "disk" / "en" / "train-*"),),
        out=tmp_path / "local",
        tokenizer=str(tmp_path / "tokenizer.json"),
        valid_share=0.1,
        workers=1,
    )
    prepare(request, lambda line: None)
    return shards(tmp_path / "local")


@pytest.mark.long
def test_a_killed_run_goes_on_at_its_commit_in_the_file_where_it_was(hub, run, tmp_path):
    """Equal to the same files on disk, though `main` moved on; the token is nowhere."""
    hub.gated = True
    killed = run(hub.url, "hf:org/name/en", kill_after=21, token=TOKEN)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    begun = json.loads((tmp_path / "out" / "progress.json").read_text())["documents"]
    assert (len(begun), begun[0]) == (2, 90)
    assert 0 < begun[1] < 90

    hub.commits[SECOND], hub.main = {**FILES, "en/train-1.jsonl": lines(900, 990)}, SECOND
    hub.read.clear()
    done = run(hub.url, "hf:org/name/en", token=TOKEN)
    assert "going on after" in done.stdout, done.stderr + done.stdout
    assert "a:en/train-0.jsonl.gz" not in hub.read
    assert "a:en/train-2.parquet" in hub.read

    assert shards(tmp_path / "out") == from_disk(tmp_path)
    sources = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]
    first = f"hf://datasets/org/name@{FIRST}/en/train-0.jsonl.gz"
    digest = hashlib.sha256(FILES["en/train-0.jsonl.gz"]).hexdigest()
    assert (sources[0]["name"], sources[0]["sha256"]) == (first, digest)
    written = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    said = [one.encode() for one in (killed.stdout, killed.stderr, done.stdout, done.stderr)]
    assert not any(TOKEN.encode() in one for one in written + said)


def test_what_cannot_be_had_is_one_sentence(hub, run):
    asked = {
        "hf:org/other": "is not on the hub, or is private; check the name",
        "hf:org/name/en@v9": "has no such revision; name a branch, a tag or a commit",
        "hf:org/name/en:test": "has no split 'test'; its splits are train, validation",
        "hf:org/name/fr": "BuilderConfig 'fr' not found",
        "hf:org/name/de": "holds .csv, which is not read; most data sets have a copy in Parquet",
        "hf://datasets/org/name/none/*.jsonl": "holds no such file; check the path",
    }
    done = run(hub.url, *asked)
    said = [json.loads(x[10:]) for x in done.stdout.splitlines() if x.startswith("DataError ")]
    assert len(said) == len(asked), done.stdout + done.stderr
    for (source, message), sentence in zip(asked.items(), said, strict=True):
        assert sentence.startswith(f"{source}: ")
        assert message in sentence
        assert "\n" not in sentence


@pytest.mark.long
def test_a_gated_data_set_and_no_network_are_one_sentence(hub, run):
    hub.gated = True
    done = run(hub.url, "hf:org/name/en")
    assert "hf:org/name/en: is gated; accept its terms" in done.stdout, done.stdout + done.stderr
    hub.server.shutdown()
    hub.server.server_close()
    done = run(hub.url, "hf:org/name/en")
    assert "hf:org/name/en: the hub did not answer" in done.stdout, done.stdout + done.stderr
    assert "check the network" in done.stdout


@pytest.mark.long
def test_files_of_a_data_set_are_named_by_a_pattern(hub, run, tmp_path):
    done = run(hub.url, f"hf://datasets/org/name@{FIRST}/en/train-*")
    assert done.returncode == 0, done.stderr
    assert shards(tmp_path / "out") == from_disk(tmp_path), done.stdout


@pytest.mark.long
def test_a_sweep_reads_the_hub_and_keeps_the_commit_that_it_began_with(hub, submit, tmp_path):
    """Killed in the middle, `main` moved on, then without a network: one trial, the same bytes."""
    killed = submit(hub.url, "hf:org/name/en", kill_after=21)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    trial, path, *data = of_trial(killed)
    assert path == f"hf:org/name/en@{FIRST}:train"
    assert data == ["name", '{"path":"org/name"}']

    hub.commits[SECOND], hub.main = {**FILES, "en/train-1.jsonl": lines(900, 990)}, SECOND
    hub.read.clear()
    done = submit(hub.url, "hf:org/name/en")
    assert of_trial(done)[0] == trial
    assert "going on after" in done.stdout, done.stdout + done.stderr
    assert "a:en/train-0.jsonl.gz" not in hub.read
    assert not [name for name in hub.read if name.startswith("b:")]
    (cached,) = (tmp_path / "cache").glob("text-*/")
    expected = from_disk(tmp_path)
    assert {name: (cached / name).read_bytes() for name in expected} == expected

    hub.server.shutdown()
    hub.server.server_close()
    again = submit(hub.url, "hf:org/name/en")
    assert of_trial(again)[0] == trial
    assert "bytes per token" in again.stdout, again.stdout + again.stderr
    written_out = submit(hub.url, f"'hf:org/name/en@{FIRST}'")
    assert of_trial(written_out)[0] == trial, "named as it was pinned: the same trial"

    (tmp_path / "sweep.hub_commits.json").unlink()
    unknown = submit(hub.url, "hf:org/name/en")
    assert "sweep.yaml:3:28: data.path: hf:org/name/en: the hub did not answer" in unknown.stdout
    assert "or name a commit (hf:org/name/en@COMMIT:train)" in unknown.stdout


@pytest.mark.long
def test_another_commit_is_another_trial(hub, submit, tmp_path):
    hub.commits[SECOND] = {**FILES, "en/train-1.jsonl": lines(900, 990)}
    first, second = (
        of_trial(submit(hub.url, f"'hf://datasets/org/name@{commit}/en/train-*'"))
        for commit in (FIRST, SECOND)
    )
    assert first[0] != second[0]
    assert not (tmp_path / "sweep.hub_commits.json").exists()


def test_a_network_that_fails_keeps_what_was_tokenised(tmp_path):
    def build(error):
        def build(folder):
            (folder / "progress.json").write_text("half")
            raise error

        return build

    with pytest.raises(DataError):
        cached_folder(tmp_path, "text-1", build(NetworkError(["x"])), resumable=True)
    assert (tmp_path / "text-1.partial" / "progress.json").exists()
    with pytest.raises(DataError):
        cached_folder(tmp_path, "text-1", build(DataError(["x"])), resumable=True)
    assert not (tmp_path / "text-1.partial").exists()

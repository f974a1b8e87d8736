"""Whatever is in the file, its author gets a list of problems and never a traceback."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.records.errors import ConfigError, ConfigProblem
from orchestrator.sweep.load import load_sweep

GOOD = """name: test
data: {source: biographies, n_people: 100}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
trials:
  - grid: {model.preset: [d16, d24], train.lr: [1.0e-2, 2.0e-2]}
  - set: {model.architecture: memory_plus, model.n_keys: 32}
    match: {training_flops: dense}
  - isoflop: {budgets_flops: [1.0e+12], architectures: [dense], sizes: 3}
    set: {train.batch_tokens: 16}
  - ladder: {architectures: [dense], sizes: [d32]}
  - zip: {data.seed: [1, 2], data.n_people: [10, 20]}
seeds: [0, 1]
resources: {gpus: auto, cpus: 1}
retries: {failure: 1}
logging: {every_steps: 5}
"""
PIECES = (
    *("{", "}", "[", "]", ":", ": ", "- ", ",", "#", "'", '"', "&a ", "*a", "<<: ", "!x ", "|\n"),
    *("\n", "\n  ", "\t", " ", "~", "null", "yes", "-1", "0", "1.5", "1e-3", ".nan", "text"),
    *(
        "[]",
        "{}",
        "[1, 2]",
        "{a: 1}",
        "dense",
        "d16",
        "model.n_keys",
        "9" * 30,
        "\x00",
        "é",
        "---\n",
    ),
)


LINE_ENDS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What YAML counts as the end of a line."""


def survives(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(text, encoding="utf-8")
        problems: Sequence[ConfigProblem] = ()
        trials = 0
        try:
            trials = len(load_sweep(file).trials)
        except ConfigError as error:
            problems = error.problems
    assert bool(trials) != bool(problems), "either trials or problems"
    for problem in problems:
        assert problem.message
        assert problem.line is None or 1 <= problem.line <= len(LINE_ENDS.split(text))


@given(st.data())
def test_a_good_file_with_pieces_cut_out_and_put_in(data: st.DataObject) -> None:
    text = GOOD
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:]

    survives(text)


@given(st.data())
def test_a_good_file_with_one_value_replaced(data: st.DataObject) -> None:
    words = GOOD.replace(",", " ").replace("}", " ").split()
    whole = {word for word in words if word.replace("_", "").isalnum()}
    word = data.draw(st.sampled_from(sorted(whole)))

    survives(GOOD.replace(word, data.draw(st.sampled_from(PIECES)), 1))


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    survives(text)

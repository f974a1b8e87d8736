"""`memscale generate`, through a pretrained folder; and its mistakes."""

import json
import re

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from workloads.architectures import dense
from workloads.checkpoint.huggingface import folder
from workloads.data.tokenizer import train
from workloads.layers.modules.init import initialise

CONFIG = dense.Config(d_model=16, n_layers=1, n_heads=2, d_ff=24)


def memscale(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, result.output


def flat(told):
    return re.sub(r"\s+", " ", told[1]).strip()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    built = CONFIG.build(270)
    initialise(built, 0)
    tokenizer = train(["the river and the city"] * 3, vocab_size=270)
    folder.write(path, CONFIG, dict(built.named_parameters()), seq_len=32, tokenizer=tokenizer)
    return path


def test_prompts_of_options_and_of_a_file(model, tmp_path):
    (tmp_path / "plain.txt").write_text("the city\n\nand\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "the\\nriver", "n": 1}\n')
    options = ("--max-tokens", 4, "--device", "cpu")

    code, shown = memscale("generate", model, "--prompt", "the", "--prompt", "a", *options)
    found = [
        memscale("generate", model, "--prompts", tmp_path / name, "--json", *options)
        for name in ("plain.txt", "lines.jsonl")
    ]

    assert code == 0
    assert shown.startswith("the")
    assert "\n\na" in shown
    prompts = [[one["prompt"] for one in json.loads(told)] for code, told in found if code == 0]
    assert prompts == [["the city", "and"], ["the\nriver"]]
    assert {*json.loads(found[0][1])[0]} == {"prompt", "text", "n_tokens", "ended"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is no prompt; give --prompt TEXT or --prompts FILE"),
        (("--prompts", "none.txt"), "none.txt: cannot be read"),
        (("--prompts", "bad.jsonl"), 'bad.jsonl:1: expected {"prompt": "…"}'),
        (("--prompts", "empty.txt"), "empty.txt: holds no prompt"),
        (("--prompt", "a", "--top-k", "3"), "top_k limit what is drawn"),
        (("--prompt", "a", "--max-tokens", "99"), "lower --max-tokens to 32"),
    ],
)
def test_mistakes_are_one_sentence(model, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("the city\n")
    (tmp_path / "empty.txt").write_text("\n")

    told = memscale("generate", model, *options)

    assert told[0] == 2
    assert message in flat(told)


def test_the_first_example_of_its_help_works_on_a_short_model(model):
    code, shown = memscale("generate", model, "--prompt", "The river", "--device", "cpu")

    assert code == 0, shown
    assert shown.startswith("The river")


def test_a_trial_that_is_not_there(tmp_path):
    told = memscale("generate", "dense-0", "--prompt", "a", "--runs", tmp_path)

    assert told[0] == 2
    assert "dense-0" in flat(told)

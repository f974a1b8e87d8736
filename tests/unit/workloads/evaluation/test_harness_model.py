"""Our model class against the harness's own for Hugging Face models, on the same weights and tokenizer."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from workloads.architectures import dense, memory_plus, moe, pythia
from workloads.checkpoint.huggingface import folder
from workloads.data.tokenizer import train
from workloads.decoding.decoder import NotANumberError
from workloads.evaluation import text_model
from workloads.evaluation.harness_model import HarnessModel
from workloads.evaluation.text_model import TextModel
from workloads.layers.modules.init import initialise

SEQ_LEN, VOCAB_SIZE = 32, 320
TEXT = (
    "The Vistula is the longest river in Poland. Warsaw lies on it, and so does Kraków. "
    "In 1596 the king moved his court from Kraków to Warsaw; the city on the hill lost its rank."
)
CONFIGS = {
    "llama": dense.Config(d_model=24, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=40),
    "gpt_neox": pythia.Config(d_model=32, n_layers=2, n_heads=4, d_ff=40),
}


class Request:
    """What the harness hands over."""

    def __init__(self, *args):
        self.args = args


def _model(config) -> nn.Module:
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer():
    return train([TEXT] * 3, vocab_size=VOCAB_SIZE)


def _ours(model, tokenizer, **more):
    sizes = {"seq_len": SEQ_LEN, "vocab_size": VOCAB_SIZE}
    return HarnessModel(TextModel(model=model, tokenizer=tokenizer, **sizes, **more))


def test_nan_is_no_answer(tokenizer):
    model = _model(CONFIGS["llama"])
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    requests = [Request("Warsaw lies", choice) for choice in (" on it", " in it")]

    with pytest.raises(ValueError, match="NaN for 2 of 2 continuations: its training diverged"):
        _ours(model, tokenizer).loglikelihood(requests)


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def pair(request, tokenizer, tmp_path):
    """Ours and theirs, in float64, because theirs sums fp32 in another order."""
    from lm_eval.models.huggingface import HFLM  # seconds, so only where a test of this file runs

    model = _model(request.param)
    weights = dict(model.named_parameters())
    folder.write(tmp_path, request.param, weights, seq_len=SEQ_LEN, tokenizer=tokenizer)
    theirs = HFLM(pretrained=str(tmp_path), dtype="float64", batch_size=3, device="cpu")
    assert theirs.max_length == SEQ_LEN
    return _ours(model.double(), tokenizer), theirs


PAIRS = [
    ("Warsaw lies on", " the Vistula"),
    ("Warsaw lies on ", "the Vistula"),
    ("", "In 1596 the king"),
    ("Question: which river?\nAnswer:", " a"),
    ("Question: which river?\nAnswer:", " b"),
    ("Question: which river?\nAnswer:", " the Warta, in Kraków"),
    (TEXT, " and never again"),
]


def test_log_likelihoods(pair):
    ours, theirs = pair

    found = ours.loglikelihood([Request(*each) for each in PAIRS])
    expected = theirs.loglikelihood([Request(*each) for each in PAIRS], disable_tqdm=True)

    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [x for x, _ in found] == pytest.approx([x for x, _ in expected], abs=1e-6, rel=0)
    assert len(ours.cut_prompts) == 1


def test_what_the_model_would_say_is_greedy(pair):
    ours, theirs = pair
    ids = ours.tok_encode("Warsaw lies on")
    with torch.no_grad():
        likeliest = int(ours.text.model(torch.tensor([ids]))[0, -1].argmax())

    for model in (ours, theirs):
        for token, greedy in ((likeliest, True), (likeliest - 1, False)):
            assert model._loglikelihood_tokens([(None, ids, [token])])[0][1] is greedy


def test_rolling_log_likelihoods(pair):
    ours, theirs = pair
    texts = ["Warsaw", TEXT, f"{TEXT} {TEXT} Poland"]
    assert len(ours.tok_encode(texts[1])) > SEQ_LEN

    found = ours.loglikelihood_rolling([Request(text) for text in texts])
    expected = theirs.loglikelihood_rolling([Request(text) for text in texts], disable_tqdm=True)

    assert found == pytest.approx(expected, abs=1e-6, rel=0)


@pytest.mark.parametrize("until", [["\n"], ["a", "e"], "t", []], ids=str)
def test_generated_text(pair, until):
    ours, theirs = pair
    prompts = ["Warsaw lies on", "The king", "Q: which river?\nA:", TEXT, "Poland", "In 1596 the"]
    settings = {"until": until, "do_sample": False, "max_gen_toks": 12}

    found = ours.generate_until([Request(prompt, settings) for prompt in prompts])
    expected = theirs.generate_until(
        [Request(prompt, dict(settings)) for prompt in prompts], disable_tqdm=True
    )

    assert found == expected
    assert len(set(found)) > 1 or until != ["\n"]


# Without theirs -----------------------------------------------------------------------------------


def _by_hand(model, ids, n_targets):
    """One pass over one row: the definition."""
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]]))[0, -n_targets:].double()
    targets = torch.tensor(ids[-n_targets:])
    picked = logits.log_softmax(-1).gather(1, targets[:, None])
    return float(picked.sum()), bool((logits.argmax(-1) == targets).all())


@pytest.mark.parametrize("module", [memory_plus, moe], ids=["memory_plus", "moe"])
def test_batches_do_not_change_likelihoods(module, tokenizer, monkeypatch):
    model = _model(module.Config(**module.PRESETS["d8"]))
    ours = _ours(model, tokenizer)
    pairs = PAIRS[:-1]
    expected = []
    for context, continuation in pairs:
        ids = ours.tok_encode(context + continuation)
        n = len(ids) - len(ours.tok_encode(context.rstrip()))
        expected.append(_by_hand(model, ids if context else [0, *ids], n))

    for size in (10**9, 1):
        monkeypatch.setattr("workloads.evaluation.text_model.MAX_LOGITS", {"cpu": size})
        found = ours.loglikelihood([Request(*pair) for pair in pairs])
        assert [x for x, _ in found] == pytest.approx([x for x, _ in expected], rel=1e-4)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def test_a_continuation_longer_than_the_model_reads_is_scored_whole(tokenizer):
    model = _model(CONFIGS["llama"])
    ours = _ours(model, tokenizer)
    ids = ours.tok_encode(f"{TEXT} {TEXT}")
    n = len(ids) - len(ours.tok_encode("The"))
    assert n > 2 * SEQ_LEN

    found = ours.loglikelihood([Request("The", f"{TEXT} {TEXT}".removeprefix("The"))])[0][0]

    expected, first = 0.0, len(ids) - n
    for start in range(first, len(ids), SEQ_LEN):
        end = min(start + SEQ_LEN, len(ids))
        expected += _by_hand(model, ids[max(0, end - 1 - SEQ_LEN) : end], end - start)[0]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_prompt_is_tokenised_once_for_all_its_choices(tokenizer, monkeypatch):
    text = TextModel(
        model=_model(CONFIGS["llama"]), tokenizer=tokenizer, seq_len=32, vocab_size=320
    )
    tokenised, handed = [], []
    encode = text.encode
    monkeypatch.setattr(text, "encode", lambda string: tokenised.append(string) or encode(string))
    ours = HarnessModel(text)
    monkeypatch.setattr(ours, "_loglikelihood_tokens", lambda asked, **_: handed.extend(asked))
    prompts = ["Question: which river?\nAnswer:", "The king"]
    pairs = [(prompt, choice) for prompt in prompts for choice in (" a", " b", " the Warta")]

    ours.loglikelihood([Request(*pair) for pair in pairs])

    assert sorted(tokenised) == sorted([*prompts, *map("".join, pairs)])
    assert handed == [(pair, *text.pair(*pair)) for pair in pairs]


def test_a_prompt_that_is_cut_counts_once(tokenizer):
    """However many choices follow it, and whether it is answered, too."""
    ours = _ours(_model(CONFIGS["llama"]), tokenizer)
    for prompt in (TEXT, f"{TEXT} It lies on\n", "Warsaw"):
        ours.loglikelihood([Request(prompt, f" {choice}") for choice in "abc"])
        ours.generate_until([Request(prompt, {"max_gen_toks": 4})])

    assert len(ours.cut_prompts) == 2


@pytest.mark.parametrize("kind", [ValueError, NotANumberError])
def test_what_one_rank_refuses_all_refuse(kind):
    """Else those without a batch of their own would wait for it."""
    told = []

    def of_rank_0(value):
        told.append(value)
        return [value, None]

    def passes(gathered, error=None):
        with text_model._refused_together(SimpleNamespace(all_gather_objects=gathered)):
            if error is not None:
                raise error

    with pytest.raises(kind, match="experts choose"):
        passes(of_rank_0, kind("experts choose"))
    with pytest.raises(kind, match="experts choose"):
        passes(lambda value: [*told, value])


def test_no_room_for_a_prompt_is_refused(tokenizer):
    ours = _ours(_model(CONFIGS["llama"]), tokenizer)
    with pytest.raises(ValueError, match="32 tokens to add leave no room for a prompt"):
        ours.generate_until([Request("x", {"max_gen_toks": 32})])


def test_progress_reaches_its_end(tokenizer):
    seen = []
    ours = _ours(
        _model(CONFIGS["llama"]), tokenizer, progress=lambda done, total: seen.append((done, total))
    )
    ours.loglikelihood([Request(*pair) for pair in PAIRS])
    assert seen[-1] == (len(PAIRS), len(PAIRS))


RANK = """
import json
import torch
from types import SimpleNamespace
from workloads.architectures import memory_plus
from workloads.data import tokenizer
from workloads.distributed import process_group
from workloads.distributed.mesh import make_mesh
from workloads.evaluation import harness_model, text_model
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import materialise_model

text_model.MAX_LOGITS = {"cpu": 40 * 320}  # many batches, so that ranks get unlike numbers
here, config = torch.device("cpu"), memory_plus.Config(**memory_plus.PRESETS["d8"])
requests = [SimpleNamespace(args=tuple(pair)) for pair in pairs]
asked = [SimpleNamespace(args=(context, {"until": ["e"], "max_gen_toks": 6})) for context, _ in pairs]
found = {}
with process_group.join(rank=rank, size=size, device=here, rendezvous=folder / f"meet-{size}") as world:
    for memory, dense in layouts:
        mesh = make_mesh(world, memory=memory)
        model = materialise_model(
            lambda: config.build(320), mesh, layout="rows", here=here, dense=dense
        )
        initialise(model, 5)
        ours = harness_model.HarnessModel(text_model.TextModel(
            model=model.eval(), tokenizer=tokenizer.load(folder / "tokenizer.json", vocab_size=320),
            seq_len=32, vocab_size=320, world=world,
        ))
        found[f"{memory} {dense}"] = [ours.loglikelihood(requests), ours.generate_until(asked)]
(folder / f"{rank}-of-{size}.json").write_text(json.dumps(found))
"""


REFUSING_RANK = """
import torch
from workloads.architectures import moe
from workloads.data import tokenizer
from workloads.distributed import process_group
from workloads.evaluation.text_model import GreedyPrompt, TextModel
from workloads.layers.modules.init import initialise

here, chooses = torch.device("cpu"), {"routing": "expert_choice", "evaluation": "expert_choice"}
with process_group.join(rank=rank, size=2, device=here, rendezvous=folder / "meet") as world:
    model = moe.Config(**{**moe.PRESETS["d8"], "top_k": 1, **chooses}).build(320)
    initialise(model, 5)
    text = TextModel(
        model=model.eval(), tokenizer=tokenizer.load(folder / "tokenizer.json", vocab_size=320),
        seq_len=32, vocab_size=320, world=world,
    )
    try:  # one batch, so the second rank has none
        text.continuations([GreedyPrompt("Warsaw", 4)])
    except ValueError as error:
        (folder / f"{rank}.txt").write_text(str(error))
    world.barrier()
"""


@pytest.mark.long
def test_two_ranks_refuse_together(tokenizer, tmp_path, run_ranks):
    tokenizer.save(tmp_path / "tokenizer.json")
    run_ranks(REFUSING_RANK, 2, {"folder": tmp_path})

    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert first == second
    assert "nothing can be decoded token by token" in first


@pytest.mark.long
def test_two_ranks_find_one_ranks_numbers(tokenizer, tmp_path, run_ranks):
    tokenizer.save(tmp_path / "tokenizer.json")
    layouts = {1: [(1, "replicated")], 2: [(1, "replicated"), (2, "replicated"), (1, "sharded")]}
    for size, chosen in layouts.items():
        variables = {"size": size, "folder": tmp_path, "layouts": chosen, "pairs": PAIRS[:-1]}
        run_ranks(RANK, size, variables)
    alone, *both = (
        json.loads((tmp_path / f"{name}.json").read_text())
        for name in ("0-of-1", "0-of-2", "1-of-2")
    )

    (scores, texts) = alone["1 replicated"]
    assert len({score for score, _ in scores}) == len(scores) - 1  # the first two are one request
    for found in both:
        assert found["1 replicated"] == [scores, texts]
        for layout in ("2 replicated", "1 sharded"):
            values = [score for score, _ in found[layout][0]]
            assert values == pytest.approx([score for score, _ in scores], abs=1e-5)
            assert found[layout][1] == texts

"""Folders written here load in transformers and give our logits, and the other way round."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from workloads.architectures import dense, memory_plus, moe, pythia
from workloads.checkpoint.huggingface import folder, meta_llama
from workloads.data.tokenizer import train
from workloads.kernels.expert_routing import op as expert_routing
from workloads.layers.modules.init import initialise

VOCAB_SIZE = 300
LLAMA = {"d_model": 24, "n_layers": 2, "n_heads": 4}
NEOX = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 40}
MOE = {**LLAMA, "n_experts": 3, "d_expert": 16, "top_k": 2}
CASES = {
    "llama": dense.Config(**LLAMA, d_ff=40),
    "llama, grouped keys, tied, base, eps": dense.Config(
        **LLAMA, d_ff=40, n_kv_heads=2, tied_embeddings=True, rope_base=500.0, norm_eps=1e-3
    ),
    "qwen3": dense.Config(**LLAMA, d_ff=40, qk_norm=True),
    "gpt_neox": pythia.Config(**NEOX),
    "gpt_neox, full rotary, tied, base": pythia.Config(
        **NEOX, rotary_fraction=1.0, tied_embeddings=True, rope_base=100.0
    ),
    "mixtral": moe.Config(**MOE, renormalise=True, n_kv_heads=2),
    "qwen3_moe": moe.Config(**MOE, qk_norm=True),
    "qwen3_moe, some dense layers": moe.Config(
        **MOE, qk_norm=True, renormalise=True, moe_layers=(1,), d_ff=40
    ),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def config(request):
    return request.param


@pytest.fixture
def wide(monkeypatch):
    """Make float64 of everything: both sides work out norms or angles in fp32, whatever the type of the model."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def _random(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _ours(config, weights=None) -> nn.Module:
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    if weights is None:
        return _random(model)
    named = dict(model.named_parameters())
    assert named.keys() == weights.keys()
    with torch.no_grad():
        for name, value in weights.items():
            named[name].copy_(value)
    return model.eval()


def _tokens() -> Tensor:
    return torch.randint(VOCAB_SIZE, (2, 19), generator=torch.Generator().manual_seed(0))


def _written(path, model, config):
    folder.write(path, config, dict(model.named_parameters()), seq_len=64, tokenizer=None)


def _changed(path, change, *, null=False):
    """Write keys into config.json; one whose value is None leaves it, or is null."""
    config = path / "config.json"
    record = {**json.loads(config.read_text()), **change}
    config.write_text(json.dumps({k: v for k, v in record.items() if null or v is not None}))
    return config


def _theirs(path) -> nn.Module:
    import transformers  # seconds, so only where a test of this file runs

    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


@torch.no_grad()
def test_what_is_written_has_our_logits(config, tmp_path):
    ours = _ours(config)
    _written(tmp_path, ours, config)

    found, expected = _theirs(tmp_path)(_tokens()).logits, ours(_tokens())

    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_same_in_float64(config, tmp_path, request, monkeypatch):
    ours = _ours(config)
    _written(tmp_path, ours, config)
    loaded = _theirs(tmp_path)
    request.getfixturevalue("wide")
    # The kernel's reference sorts fp32 numbers by their bits.
    monkeypatch.setattr(expert_routing, "best_experts", lambda s, k: s.topk(k).indices)
    # Made anew, for the frequencies of its rotary positions.
    theirs = type(loaded)(loaded.config).double().eval()
    theirs.load_state_dict(loaded.state_dict())

    found, expected = theirs(_tokens()).logits, ours.double()(_tokens())

    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_what_transformers_saves_has_their_logits_here(config, tmp_path):
    _written(tmp_path / "first", _ours(config), config)
    theirs = _random(_theirs(tmp_path / "first"))
    theirs.save_pretrained(tmp_path / "second")

    pretrained = folder.read(tmp_path / "second")
    found = _ours(pretrained.config, pretrained.weights())(_tokens())

    assert pretrained.config.param_count(VOCAB_SIZE) == config.param_count(VOCAB_SIZE)
    assert pretrained.vocab_size == VOCAB_SIZE
    torch.testing.assert_close(found, theirs(_tokens()).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_weights_in_several_files(tmp_path):
    config = CASES["llama"]
    _written(tmp_path / "first", _ours(config), config)
    theirs = _theirs(tmp_path / "first")
    theirs.save_pretrained(tmp_path / "second", max_shard_size="20KB")

    pretrained = folder.read(tmp_path / "second")

    assert len(pretrained.files) > 3
    expected = folder.read(tmp_path / "first").weights()
    torch.testing.assert_close(pretrained.weights(), expected, rtol=0, atol=0)


def test_the_tokenizer_gives_the_same_ids(tmp_path):
    import transformers

    tokenizer = train(["Warsaw is the capital of Poland."] * 3, vocab_size=VOCAB_SIZE)
    config = CASES["llama"]
    parameters = dict(_ours(config).named_parameters())
    folder.write(tmp_path, config, parameters, seq_len=64, tokenizer=tokenizer)

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)

    text = "The capital, Ünder the sea.\n  Poland"
    assert theirs(text)["input_ids"] == tokenizer.encode([text])[0]
    assert theirs.decode(theirs(text)["input_ids"]) == text
    assert theirs.bos_token_id == theirs.eos_token_id == tokenizer.separator


def test_a_folder_with_the_model_of_another_trial_is_left_as_it_is(tmp_path):
    config = CASES["llama"]
    parameters = dict(_ours(config).named_parameters())

    def write(name, trial_id):
        path = tmp_path / name
        folder.write(path, config, parameters, seq_len=64, tokenizer=None, trial_id=trial_id)
        return {file.name: file.read_bytes() for file in path.iterdir()}

    named, unnamed = write("named", "dense-0"), write("unnamed", None)
    assert named.pop("memscale.json")
    assert named == unnamed, "trials that start from it keep their ids"
    assert write("named", "dense-0").keys() > named.keys()
    for name, holds in {"named": "dense-0", "unnamed": "unknown origin"}.items():
        before = {file: file.stat().st_mtime_ns for file in (tmp_path / name).iterdir()}
        with pytest.raises(ValueError, match=f"holds a model of {holds}; name another folder"):
            write(name, "dense-1")
        assert {file: file.stat().st_mtime_ns for file in (tmp_path / name).iterdir()} == before
    (tmp_path / "named" / "config.json").unlink()
    assert b"dense-1" in write("named", "dense-1")["memscale.json"], "killed before it was whole"


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (memory_plus.Config(**memory_plus.PRESETS["d8"]), "dense, pythia and moe"),
        (moe.Config(**MOE), "renormalise: true"),
        (moe.Config(**MOE, renormalise=True, n_shared_experts=1), "n_shared_experts"),
        (pythia.Config(**NEOX, rotary_fraction=0.0), "rotary_fraction"),
    ],
    ids=["memory_plus", "moe", "shared experts", "no rotary"],
)
def test_what_transformers_has_no_model_for_is_refused(config, what, tmp_path):
    model = config.build(VOCAB_SIZE)
    with pytest.raises(ValueError, match=what):
        _written(tmp_path / "folder", model, config)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"hidden_act": "relu"}, "hidden_act must be 'silu', got 'relu'"),
        ({"model_type": "bert"}, "model_type 'bert' is none of llama"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "are scaled"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "are scaled"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}},
            r"are scaled \(rope_scaling",
        ),
        (
            {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "yarn"}},
            r"are scaled \(rope_parameters",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "are quantised .*; take the model in"),
        ({"head_dim": 7}, "head_dim must be"),
        ({"rope_scaling": 2.0}, "are scaled"),
        (
            {"model_type": "qwen3", "head_dim": None},
            r"head_dim must be .* \(6\), got 128, which absence means",
        ),
        ({"rms_norm_eps": None}, "has no rms_norm_eps"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_attention_heads": None, "vocab_size": None}, "no vocab_size, num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads must be .* at least 1, got 0"),
        ({"hidden_size": "24"}, "hidden_size must be a whole number .*, got '24'"),
        ({"hidden_size": 25}, r"must divide d_model \(25\)"),
        ({"num_key_value_heads": 0}, "n_kv_heads must"),
    ],
)
@pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
def test_models_that_compute_something_else_are_refused(change, null, what, tmp_path):
    _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    path = _changed(tmp_path, change, null=null)

    with pytest.raises(ValueError, match=what) as raised:
        folder.read(tmp_path)

    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "mixtral", "qwen3_moe"])
def test_the_base_of_rotary_positions_is_that_of_transformers(name, tmp_path):
    import transformers

    _written(tmp_path, _ours(CASES[name]), CASES[name])
    _changed(tmp_path, {"rope_theta": None, "rotary_emb_base": None})
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)

    found = folder.read(tmp_path).config.rope_base

    assert found == theirs.rope_parameters["rope_theta"]
    assert found == (1e6 if name == "mixtral" else 1e4)


def test_what_rope_scaling_says_comes_before_rope_parameters(tmp_path):
    import transformers

    _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    said = {"rope_scaling": {"type": "default", "rope_theta": 7.0}}
    _changed(tmp_path, {**said, "rope_parameters": {"rope_theta": 8.0}})

    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"]

    assert folder.read(tmp_path).config.rope_base == theirs == 7.0


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.7])
def test_an_odd_number_of_rotary_columns_is_refused(fraction, tmp_path):
    _written(tmp_path, _ours(CASES["gpt_neox"]), CASES["gpt_neox"])
    path = _changed(tmp_path, {"rotary_pct": fraction})

    with pytest.raises(ValueError, match=r"turn \d of 8 columns .* an even number") as raised:
        folder.read(tmp_path)

    assert str(path) in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(dtype, tmp_path):
    _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    name = "model.layers.1.mlp.up_proj.weight"
    _stored(tmp_path, lambda tensors: {**tensors, name: tensors[name].to(dtype)})

    with pytest.raises(ValueError, match=f"{tmp_path}: {name} is quantised .*; take the model in"):
        folder.read(tmp_path).weights()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_read_in_the_type_they_were_stored_in(dtype, tmp_path):
    _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    _stored(tmp_path, lambda tensors: {name: value.to(dtype) for name, value in tensors.items()})

    weights = folder.read(tmp_path).weights()

    assert {value.dtype for value in weights.values()} == {dtype}


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias", True),
        ("llama", "model.layers.0.mlp.up_proj.weight_scale_inv", True),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", False),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias", False),
        ("gpt_neox", "gpt_neox.layers.0.attention.masked_bias", False),
        ("gpt_neox", "lm_head.weight", False),
    ],
)
def test_tensors_that_are_left_out_are_logged(name, more, said, tmp_path, caplog):
    _written(tmp_path, _ours(CASES[name]), CASES[name])
    expected = folder.read(tmp_path).weights()
    _stored(tmp_path, lambda tensors: {**tensors, more: torch.ones(3)})

    found = folder.read(tmp_path).weights()

    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (f"has no place for {more}; left out" in caplog.text) == said
    assert bool(caplog.records) == said


def _stored(path, change):
    """Replace the tensors of a folder by what `change` makes of them."""
    file = path / "model.safetensors"
    save_file(change(load_file(file)), file)


# Folders that are not whole ----------------------------------------------------------------------


def _sharded(path, prefix="model"):
    """Write a Llama in three files and an index, and return the files' names."""
    _written(path, _ours(CASES["llama"]), CASES["llama"])
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    weight_map = {
        name: f"{prefix}-{i % 3 + 1:05}-of-00003.safetensors" for i, name in enumerate(tensors)
    }
    for file in set(weight_map.values()):
        save_file({k: tensors[k] for k, v in weight_map.items() if v == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return [f"{prefix}-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]


@pytest.mark.parametrize("prefix", ["model", "weights", "pytorch_model"])
def test_the_files_are_those_of_the_index(prefix, tmp_path):
    shards = _sharded(tmp_path, prefix)
    # Of an earlier download, say.
    save_file({"x": torch.ones(2)}, tmp_path / "model-00001-of-00009.safetensors")

    pretrained = folder.read(tmp_path)

    expected = ["config.json", "model.safetensors.index.json", *shards]
    assert [file.name for file in pretrained.files] == expected
    weights = dict(_ours(CASES["llama"]).named_parameters())
    found = {k: nn.Parameter(v) for k, v in pretrained.weights().items()}
    torch.testing.assert_close(found, weights, rtol=0, atol=0)


def test_a_missing_file_is_named(tmp_path):
    shards = _sharded(tmp_path)
    (tmp_path / shards[1]).unlink()

    with pytest.raises(ValueError, match=rf"has no {shards[1]}, which .*; take a complete down"):
        folder.read(tmp_path)
    weights = dict(_ours(CASES["llama"]).named_parameters())
    with pytest.raises(ValueError, match="holds a model of unknown origin"):
        folder.write(
            tmp_path, CASES["llama"], weights, seq_len=64, tokenizer=None, trial_id="dense-0"
        )


@pytest.mark.parametrize("index", ["{}", "[1]", '{"weight_map": [1]}'])
def test_an_index_that_names_no_files_is_refused(index, tmp_path):
    _sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ValueError, match=r"index\.json: (has no weight_map|not a JSON object)"):
        folder.read(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 200, -100])
def test_a_file_that_is_cut_off_is_named(kept, tmp_path):
    file = tmp_path / _sharded(tmp_path)[2]
    file.write_bytes(file.read_bytes()[:kept])

    with pytest.raises(ValueError, match=rf"{file}: cannot be read \(.*; take a complete download"):
        folder.read(tmp_path)


@pytest.mark.parametrize("change", [{"vocab_size": 320}, {"hidden_size": 32}])
@pytest.mark.parametrize("several", [False, True], ids=["one file", "three files"])
def test_an_embedding_of_another_shape_is_refused(several, change, tmp_path):
    if several:
        _sharded(tmp_path)
    else:
        _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    _changed(tmp_path, {**change, "head_dim": None})

    with pytest.raises(ValueError, match=r"embed_tokens\.weight is \(300, 24\), and config\.json"):
        folder.read(tmp_path)


def test_keys_that_say_nothing_are_read_as_absent(tmp_path):
    keys = {"quantization_config": {}, "attention_bias": None, "mlp_bias": None}
    _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    _changed(tmp_path, keys, null=True)

    assert folder.read(tmp_path).config.d_ff == CASES["llama"].d_ff


@pytest.mark.parametrize("text", ["[1]", "null", '"llama"'])
def test_a_config_that_is_no_object_is_refused(text, tmp_path):
    _written(tmp_path, _ours(CASES["llama"]), CASES["llama"])
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ValueError, match=r"config\.json: not a JSON object"):
        folder.read(tmp_path)


def test_some_dense_layers_need_their_width(tmp_path):
    config = CASES["qwen3_moe, some dense layers"]
    _written(tmp_path, _ours(config), config)
    path = _changed(tmp_path, {"intermediate_size": None})

    with pytest.raises(ValueError, match=f"{path}: d_ff"):
        folder.read(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model; expected config\.json"):
        folder.read(tmp_path)


# Meta's format ------------------------------------------------------------------------------------


def _meta_logits(params, weights, tokens):
    """Llama from its published equations, rotary positions as complex products of neighbours."""
    dim, n_heads, n_kv = params["dim"], params["n_heads"], params["n_kv_heads"]
    d_head, seq = dim // n_heads, tokens.shape[1]
    angles = torch.outer(
        torch.arange(seq, dtype=torch.float64),
        params["rope_theta"] ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head),
    )
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def norm(x, gain):
        return x * (x.pow(2).mean(-1, keepdim=True) + params["norm_eps"]).rsqrt() * gain

    def turned(x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    x = weights["tok_embeddings.weight"][tokens]
    for i in range(params["n_layers"]):
        w = {k.removeprefix(f"layers.{i}."): v for k, v in weights.items()}
        h = norm(x, w["attention_norm.weight"])
        q = turned((h @ w["attention.wq.weight"].T).unflatten(-1, (n_heads, d_head)))
        k = turned((h @ w["attention.wk.weight"].T).unflatten(-1, (n_kv, d_head)))
        v = (h @ w["attention.wv.weight"].T).unflatten(-1, (n_kv, d_head))
        k, v = (t.repeat_interleave(n_heads // n_kv, dim=2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / d_head**0.5
        scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
        x = x + mixed @ w["attention.wo.weight"].T
        h = norm(x, w["ffn_norm.weight"])
        gate = nn.functional.silu(h @ w["feed_forward.w1.weight"].T)
        x = x + (gate * (h @ w["feed_forward.w3.weight"].T)) @ w["feed_forward.w2.weight"].T
    return norm(x, weights["norm.weight"]) @ weights["output.weight"].T


META = {
    "dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "multiple_of": 16,
    "norm_eps": 1e-5,
    "rope_theta": 300.0,
    "vocab_size": VOCAB_SIZE,
}


def _meta_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return 0.4 * torch.randn(*shape, generator=generator)

    weights = {
        "tok_embeddings.weight": draw(VOCAB_SIZE, 24),
        "norm.weight": draw(24),
        "output.weight": draw(VOCAB_SIZE, 24),
    }
    shapes = {
        **{
            f"attention.w{part}": (rows, 24)
            for part, rows in zip("qkvo", (24, 12, 12, 24), strict=True)
        },
        "feed_forward.w1": (64, 24),
        "feed_forward.w3": (64, 24),
        "feed_forward.w2": (24, 64),
        "attention_norm": (24,),
        "ffn_norm": (24,),
    }
    for i in range(2):
        weights |= {f"layers.{i}.{name}.weight": draw(*shape) for name, shape in shapes.items()}
    return weights


def _meta_written(path, weights, **params):
    (path / "params.json").write_text(json.dumps({**META, **params}))
    torch.save(weights, path / "consolidated.00.pth")


@torch.no_grad()
def test_metas_llama_with_rotary_pairs_of_neighbours(tmp_path, request):
    weights = _meta_weights()
    _meta_written(tmp_path, weights)

    pretrained = folder.read(tmp_path)
    ours = _ours(pretrained.config, pretrained.weights()).double()
    request.getfixturevalue("wide")
    found = ours(_tokens())

    assert (pretrained.architecture, pretrained.vocab_size) == ("dense", VOCAB_SIZE)
    expected = _meta_logits(META, {k: v.double() for k, v in weights.items()}, _tokens())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("wrapped", [False, True], ids=["Meta", "lingua"])
def test_a_vocabulary_that_meta_leaves_open_is_that_of_the_embedding(wrapped, tmp_path):
    weights = _meta_weights()
    _meta_written(tmp_path, {"model": weights} if wrapped else weights, vocab_size=-1)

    assert folder.read(tmp_path).vocab_size == VOCAB_SIZE


def test_an_open_vocabulary_without_an_embedding_is_refused(tmp_path):
    weights = _meta_weights()
    del weights["tok_embeddings.weight"]
    _meta_written(tmp_path, weights, vocab_size=-1)

    with pytest.raises(ValueError, match=r"00\.pth: has no 'tok_embeddings.weight'; take a comp"):
        folder.read(tmp_path)


def test_a_file_of_metas_that_is_cut_off_is_refused(tmp_path):
    _meta_written(tmp_path, _meta_weights(), vocab_size=-1)
    file = tmp_path / "consolidated.00.pth"
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(ValueError, match=r"00\.pth: cannot be read \(.*; take a complete download"):
        folder.read(tmp_path)


def test_metas_weights_in_several_parts_are_refused(tmp_path):
    for name in ("consolidated.01.pth", "consolidated.02.pth"):
        torch.save(_meta_weights(), tmp_path / name)
    _meta_written(tmp_path, _meta_weights())

    with pytest.raises(ValueError, match="holds Meta's weights in 3 parts, .* in Hugging Face's"):
        folder.read(tmp_path)


def test_pairs_as_halves():
    rows = torch.arange(12)[:, None]  # 2 heads of 6 columns: pairs (0, 1), (2, 3), (4, 5)
    assert meta_llama.halves(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]

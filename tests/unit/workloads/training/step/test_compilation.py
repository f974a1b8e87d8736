import gc
import importlib
import os
import weakref
from contextlib import nullcontext

import pytest
import torch

from orchestrator.sweep import registry
from workloads.layers.modules.init import initialise
from workloads.training.step import compilation
from workloads.training.step.train_step import accumulate_gradients, plain_loss
from workloads.training.step.usage_schedule import set_usage_recording

LONG = pytest.mark.long
OPTIONS = compilation.INDUCTOR_OPTIONS
LINEAR = ("cosformer", "linformer", "performer")
WINDOWS = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def traced_only(monkeypatch):
    """Graphs are traced and differentiated, but not compiled to machine code: that takes minutes."""
    graphs, refused = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        try:
            return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)
        except Exception as error:
            refused.append(error)
            raise

    torch._dynamo.reset()
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: compile_(f, backend=backend, **options)
    )
    # Other backends refuse them.
    monkeypatch.setattr(compilation, "INDUCTOR_OPTIONS", None)
    monkeypatch.setattr(compilation, "_compiled", {})
    yield graphs
    torch._dynamo.reset()
    # A block that is refused runs as it is written, and nothing else would tell.
    assert refused == []


def test_views_are_not_replayed_from_what_a_cache_may_have_spoilt():
    """pytorch#185630: sizes of a graph's returned views, read from freed memory."""
    model = model_of("all_attention")
    compilation.compile_training(model)

    assert torch._functorch.config.view_replay_for_aliased_outputs is False


def model_of(name, **changes):
    module = registry.architecture(name)
    model = module.Config(**{**module.PRESETS["d16"], **changes}).build(64)
    initialise(model, 0)
    model.recording_usage = False
    return model.train()


def gradients_of(model, loss):
    found = accumulate_gradients(
        model, WINDOWS, batch_tokens=64, passes=1, autocast=nullcontext, loss=loss
    )
    return found["loss"], {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "name",
    ["memory_plus", *(pytest.param(n, marks=LONG) for n in ("dense", "pythia", *LINEAR))],
)
def test_compiled_passes_find_the_same_loss_and_gradients(name):
    several_chunks = {"chunk_tokens": 4} if name in LINEAR else {}
    loss, gradients = gradients_of(model_of(name, **several_chunks), plain_loss)
    compiled = model_of(name, **several_chunks)
    compilation.compile_training(compiled)
    found, of_compiled = gradients_of(compiled, compilation.compiled_loss)

    torch.testing.assert_close(found, loss)
    assert of_compiled.keys() == gradients.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(of_compiled[key], gradient, rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", ["dense", pytest.param("memory_plus", marks=LONG)])
def test_a_model_is_freed_with_its_trial_and_the_next_finds_its_graphs(traced_only, name):
    n_graphs = []
    for _ in range(3):
        model = model_of(name, n_layers=3)
        compilation.compile_training(model)
        gradients_of(model, compilation.compiled_loss)
        n_graphs.append(len(traced_only))
        tensors = [weakref.ref(p) for p in model.parameters()] + [weakref.ref(model)]
        del model
        gc.collect()
        assert [one() for one in tensors if one() is not None] == []

    assert n_graphs[0] == n_graphs[-1]
    # One for blocks of a kind, one for head and loss.
    assert n_graphs[0] == (2 if name == "dense" else 3)


def test_evaluation_is_not_compiled(traced_only):
    model = model_of("memory_plus")
    compilation.compile_training(model)
    with torch.no_grad():
        model(WINDOWS[:, :-1])

    assert traced_only == []


def test_of_passes_that_record_only_the_blocks_that_record_are_not_compiled(traced_only):
    model = model_of("memory_plus", n_layers=3)
    compilation.compile_training(model)
    model.recording_usage = True
    model(WINDOWS[:, :-1])

    assert len(traced_only) == 1  # of the blocks without a memory
    assert model.statistics()


def test_a_model_that_records_nothing_is_never_asked_to():
    dense, memory = model_of("dense"), model_of("memory_plus")
    for model in (dense, memory):
        set_usage_recording(model, now=True)

    assert not dense.recording_usage
    assert memory.recording_usage


def test_inductor_knows_the_options():
    """It refuses others, and blocks would run uncompiled."""
    torch.compile(torch.sin, options=OPTIONS)


@pytest.mark.parametrize("own", [None, "/their/own"])
def test_compiled_kernels_are_kept_where_all_trials_find_them_unless_the_user_says_where(
    tmp_path, monkeypatch, own
):
    folders = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    # As importing Inductor leaves it.
    monkeypatch.setenv(compilation.INDUCTOR_FOLDER, own or folders.default_cache_dir())

    compilation.share_compile_cache(tmp_path, threads=1)

    assert os.environ[compilation.INDUCTOR_FOLDER] == (own or str(tmp_path / "inductor"))
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert own or folders.cache_dir() == str(tmp_path / "inductor")

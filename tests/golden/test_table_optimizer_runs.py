"""Ten steps of `run` per table optimizer are those of a float64 loop written for this test alone.

The loop shares the model's forward pass and the corpus with the product. Windows, losses,
accumulation, learning rates, decay, clipping and update rules are its own: plain dense gradients
and the equations of docs/table-optimizers.md.
"""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.architectures import memory_plus
from workloads.checkpoint import checkpoint
from workloads.data.sources import biographies
from workloads.layers.modules.init import initialise
from workloads.training.rank_job import RankJob
from workloads.training.train import run

STEPS, SEQUENCES, SEQ_LEN, SEED = 10, 6, 16, 5
LR, FINAL_LR, WARMUP_STEPS = 0.02, 0.1, 2
VALUE_RATIO, FINAL_VALUE_RATIO = 4.0, 1.0
BETA1, BETA2, EPS, DECAY, VALUE_DECAY, CLIP = 0.9, 0.95, 1e-3, 0.1, 0.05, 0.05
TABLE = "memory_table.weight"
DATA = {
    "n_people": 20,
    "style": "compact",
    "n_wordings": 4,
    "n_probe_people": 4,
    **{f"n_{pool}": 8 for pool in ("first_names", "middle_names", "last_names", "years", "cities")},
    **{f"n_{pool}": 8 for pool in ("universities", "majors", "employers")},
}
MODEL = {
    "d_model": 8,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 16,
    "n_keys": 16,
    "memory_layers": [0, 1],
    "n_memory_heads": 2,
    "knn": 2,
}


class Silent:
    """A reporter that keeps the training metrics."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def metrics(self, step, values):
        self.rows[step] = dict(values)

    def checkpoint(self, step, path):
        pass

    def progress(self, step, steps, phase, values):
        pass

    def should_stop(self):
        return False


def rates(step: int) -> tuple[float, float]:
    """Return the learning rates of the model and of the table: warm-up, cosine; a linear ratio."""
    done = max(0, step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    cosine = FINAL_LR + (1 - FINAL_LR) * (1 + math.cos(math.pi * done)) / 2
    lr = LR * min(step / WARMUP_STEPS, cosine)
    ratio = FINAL_VALUE_RATIO + (VALUE_RATIO - FINAL_VALUE_RATIO) * (1 - step / STEPS)
    return lr, lr * ratio


def adamw(w: Tensor, g: Tensor, state: dict[str, Tensor], rows, *, step, lr, decay) -> None:
    """Loshchilov & Hutter 2019, algorithm 2, of some rows only."""
    m, v = (state.setdefault(name, torch.zeros_like(w)) for name in "mv")
    m[rows] = BETA1 * m[rows] + (1 - BETA1) * g[rows]
    v[rows] = BETA2 * v[rows] + (1 - BETA2) * g[rows] ** 2
    upward = (m[rows] / (1 - BETA1**step)) / ((v[rows] / (1 - BETA2**step)).sqrt() + EPS)
    w[rows] = w[rows] - lr * decay * w[rows] - lr * upward


def rowwise(w: Tensor, g: Tensor, state: dict[str, Tensor], rows, *, step, lr, decay) -> None:
    """One second moment per row; a row's first is its first gradient's mean square."""
    before = state.setdefault("q", torch.zeros(len(w), dtype=w.dtype))[rows]
    now = (g[rows] ** 2).mean(1)
    q = torch.where(before == 0, now, BETA2 * before + (1 - BETA2) * now)
    state["q"][rows] = q
    w[rows] = w[rows] - lr * decay * w[rows] - lr * g[rows] / (q.sqrt() + EPS)[:, None]


def sgd(w: Tensor, g: Tensor, state: dict[str, Tensor], rows, *, step, lr, decay) -> None:
    w[rows] = w[rows] - lr * decay * w[rows] - lr * g[rows]


ALL_ROWS = ("adamw", "deferred_adamw")
RULES = dict.fromkeys((*ALL_ROWS, "lazy_adamw"), adamw) | {"rowwise": rowwise, "sgd": sgd}


def clip(gradients: list[Tensor]) -> float:
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    for g in gradients:
        g *= min(1.0, CLIP / (norm + 1e-6))
    return norm


def float64_loop(
    model: nn.Module, windows: np.ndarray, rule: str
) -> Iterator[tuple[float, float, float]]:
    """Yield loss, gradient norm and the table's gradient norm of each step."""
    states: dict[str, dict[str, Tensor]] = {name: {} for name, _ in model.named_parameters()}
    for step in range(1, STEPS + 1):
        batch = torch.from_numpy(windows[(step - 1) * SEQUENCES : step * SEQUENCES])
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        table_norm = clip([gradients[TABLE]])
        norm = clip([g for name, g in gradients.items() if name != TABLE])
        lr, table_lr = rates(step)
        with torch.no_grad():
            for name, p in model.named_parameters():
                everywhere = torch.arange(len(p))
                if name == TABLE:
                    read = gradients[name].any(1).nonzero().flatten()
                    assert 0 < len(read) < len(p), "no row is left out, so lazy means nothing"
                    rows = everywhere if rule in ALL_ROWS else read
                    RULES[rule](p, gradients[name], states[name], rows, step=step, lr=table_lr, decay=VALUE_DECAY)  # fmt: skip
                else:
                    decayed = p.ndim > 1 and "embedding" not in name
                    adamw(p, gradients[name], states[name], everywhere, step=step, lr=lr, decay=DECAY * decayed)  # fmt: skip
        yield loss.item(), norm, table_norm


@pytest.mark.parametrize("rule", RULES)
def test_ten_steps_are_those_of_a_loop_in_float64(tmp_path, rule):
    train = {
        "tokens": STEPS * SEQUENCES * SEQ_LEN,
        "batch_tokens": SEQUENCES * SEQ_LEN,
        "seq_len": SEQ_LEN,
        "lr": LR,
        "warmup_fraction": WARMUP_STEPS / STEPS,
        "final_lr_fraction": FINAL_LR,
        "value_lr_ratio": VALUE_RATIO,
        "value_lr_final_ratio": FINAL_VALUE_RATIO,
        "weight_decay": DECAY,
        "value_weight_decay": VALUE_DECAY,
        "grad_clip": CLIP,
        "table_optimizer": rule,
        "eps": EPS,
        "precision": "fp32",
    }
    job = RankJob(
        data={"source": "biographies", **DATA},
        model={"architecture": "memory_plus", **MODEL},
        train=train,
        seed=SEED,
        checkpoints=tmp_path / "checkpoints",
        cache=tmp_path / "cache",
        log_every_steps=1,
        evaluations=1,
        checkpoint_every_s=1e9,
        micro_batch_tokens=2 * SEQ_LEN,
        device="cpu",
    )
    reporter = Silent()
    run(job, reporter)

    corpus = biographies.Config(**DATA).prepare(tmp_path / "cache")
    model = memory_plus.Config(**MODEL).build(corpus.vocab_size)
    initialise(model, SEED)
    model.double().train()
    windows = corpus.windows(np.arange(STEPS * SEQUENCES), seq_len=SEQ_LEN, seed=SEED)
    expected = [*float64_loop(model, windows, rule)]

    names = ("train/loss", "train/grad_norm", "train/value_grad_norm")
    found = [[reporter.rows[step][name] for name in names] for step in range(1, STEPS + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert min(norm for _, *norms in expected for norm in norms) > CLIP, "clipping never acts"
    weights = checkpoint.load(tmp_path / "checkpoints" / "final")["weights"]
    for name, p in model.named_parameters():
        torch.testing.assert_close(
            weights[name].double(), p.detach(), rtol=1e-4, atol=1e-6, msg=name
        )

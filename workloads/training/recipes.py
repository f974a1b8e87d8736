"""Training recipes of papers, as defaults for `train:`, each with its source.

`train: {recipe: pythia_70m, tokens: 1_000_000_000}` takes every field that is not written from
here. A recipe holds every field that bears on it, so that a default of `TrainConfig` may change
without changing a recipe. It never holds `tokens`: how long to train is the sweep's own question.
What a source does not state is said in `source`, together with what stands in for it. Batches are
the sources' own; on a small machine write smaller ones.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named set of defaults for `train:`."""

    fields: Mapping[str, Any]
    """Fields of `TrainConfig`."""
    source: str
    """Sentences: where the numbers are from, and which of them are not stated there."""
    tokens: int | None = None
    """Tokens of the source's own run, for who repeats it; None where there is no single one."""


def _adamw(**fields: Any) -> dict[str, Any]:
    """Return the fields that most recipes share: AdamW as for Llama and Pythia."""
    return {
        "weight_decay": 0.1,
        "value_lr_ratio": 1.0,
        "value_weight_decay": 0.1,
        "table_optimizer": "adamw",
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1.0e-8,
        "grad_clip": 1.0,
        **fields,
    }


_MEMORY_LAYERS = (
    "Berges et al. 2024, Memory Layers at Scale (arXiv 2412.09764), and its authors' answers to "
    "reviewers"
)
_MEMORY_CODE = (
    "the released code's 373M configuration (github.com/facebookresearch/memory): linear to 1 % "
    "after 4,000 of 128,000 steps, values decayed like the rest, sequences of 4,096. It does not "
    "say how many GPUs: 2,048 sequences a step is the power of two nearest to 1e12 tokens in "
    "128,000 steps."
)


_UP_TO_1B = "learning rate 3e-4 from 134M to 1.3B, 1e12 tokens"


def _memory_layers(lr: float, *, stated: str) -> Recipe:
    return Recipe(
        fields=_adamw(
            lr=lr,
            schedule="linear",
            warmup_fraction=0.03125,
            final_lr_fraction=0.01,
            value_lr_ratio=1.0e-3 / lr,
            batch_tokens=8_388_608,
            seq_len=4_096,
        ),
        source=f"{_MEMORY_LAYERS}: {stated}. All else is not stated there. For it stands "
        f"{_MEMORY_CODE} Values learn at 1e-3 whatever the backbone does, the code's default. "
        "The code decays norms, biases and embeddings too, here they are not.",
        tokens=1_000_000_000_000,
    )


def _ultramem(lr: float) -> Recipe:
    return Recipe(
        fields=_adamw(
            lr=lr,
            schedule="cosine",
            warmup_fraction=0.02,
            final_lr_fraction=0.1,
            value_lr_ratio=10.0,
            value_lr_final_ratio=1.0,
            batch_tokens=4_194_304,
            seq_len=2_048,
        ),
        source="Huang et al. 2024, Ultra-Sparse Memory Network (arXiv 2411.12364): learning rate "
        "of this size, weight decay 0.1, 2,048 sequences of 2,048 tokens, 238,418 steps. Values "
        "go from 10 times the rate down to 1 in a straight line. Not in what we read: how long "
        "that line is (here the whole run, as in the code released with UltraMemV2), warm-up, "
        "schedule (here 2 % and cosine to a tenth). Betas, clipping, and whether values are "
        "decayed are not there either.",
        tokens=238_418 * 4_194_304,
    )


def _pythia(lr: float, *, remark: str = "") -> Recipe:
    return Recipe(
        fields=_adamw(
            lr=lr,
            schedule="cosine",
            warmup_fraction=0.01,
            final_lr_fraction=0.1,
            batch_tokens=2_097_152,
            seq_len=2_048,
        ),
        source="Biderman et al. 2023, Pythia (arXiv 2304.01373) and its configuration files "
        "(version 1): Adam with decoupled decay, none on norms and biases. It has 1 % warm-up, "
        f"cosine to a tenth, 1,024 sequences of 2,048 tokens, 143,000 steps.{remark} Embeddings "
        "are decayed there, here not. There in fp16 (1B: bf16); precision is left to `auto`.",
        tokens=143_000 * 2_097_152,
    )


def _memoryformer(lr: float, *, pythia: str) -> Recipe:
    return Recipe(
        fields=_adamw(
            lr=lr,
            schedule="cosine",
            warmup_fraction=0.01,
            final_lr_fraction=0.1,
            batch_tokens=2_097_152,
            seq_len=2_048,
            clip_values="together",
        ),
        source=f"MemoryFormer (NeurIPS 2024, arXiv 2411.12992): three times the rate of {pythia}, "
        "otherwise Pythia's optimizer and schedule. Tables are decayed at every step, hit or "
        "not, as in the released code, and clipped with all else by one norm. Not stated: tokens; "
        "Pythia's length is meant by the comparison. Embeddings are decayed there, here not.",
        tokens=143_000 * 2_097_152,
    )


RECIPES: dict[str, Recipe] = {
    "memory_layers_134m": _memory_layers(3.0e-4, stated=_UP_TO_1B),
    "memory_layers_373m": _memory_layers(3.0e-4, stated=_UP_TO_1B),
    "memory_layers_720m": _memory_layers(3.0e-4, stated=_UP_TO_1B),
    "memory_layers_1.3b": _memory_layers(3.0e-4, stated=_UP_TO_1B),
    "memory_layers_8b": _memory_layers(
        1.0e-4, stated="learning rate 1e-4 at 8B, results at 2e11 and 1e12 tokens"
    ),
    "memory_layers_released": Recipe(
        fields=_adamw(
            lr=1.0e-4,
            schedule="linear",
            warmup_fraction=0.03125,
            final_lr_fraction=0.01,
            value_lr_ratio=10.0,
            batch_tokens=8_388_608,
            seq_len=4_096,
        ),
        source="github.com/facebookresearch/memory, configuration pkplus_373m_1024k: learning "
        f"rate 1e-4 (the paper says 3e-4 at this size), values 1e-3. The rest is from "
        f"{_MEMORY_CODE} Norms, biases and embeddings are decayed there, here not.",
        tokens=128_000 * 8_388_608,
    ),
    "pkm_2019": Recipe(
        fields=_adamw(
            lr=2.5e-4,
            schedule="constant",
            warmup_fraction=0.0,
            final_lr_fraction=1.0,
            weight_decay=0.0,
            value_lr_ratio=4.0,
            value_weight_decay=0.0,
            beta2=0.98,
            grad_clip=5.0,
            batch_tokens=262_144,
            seq_len=256,
        ),
        source="Lample et al. 2019, Large Memory Layers with Product Keys (arXiv 1907.05242): "
        "Adam 2.5e-4, betas 0.9 and 0.98, values at a constant 1e-3, 32 GPUs, no decay. Differs: "
        "the backbone follows warm-up and inverse square root there (no length stated), a "
        "constant rate here, so that values keep theirs. Not stated: batch and clipping, for "
        "which stand the defaults of the released code (32 sequences of 256 per GPU, 5).",
    ),
    "peer": Recipe(
        fields=_adamw(
            lr=3.0e-4,
            schedule="cosine",
            warmup_fraction=0.02,
            final_lr_fraction=0.1,
            value_weight_decay=0.0,
            batch_tokens=262_144,
            seq_len=2_048,
        ),
        source="He 2024, Mixture of a Million Experts (arXiv 2407.04153): 128 sequences of 2,048 "
        "tokens, models compared at 6e18 and 2e19 FLOPs on C4. Not stated in what we read: "
        "optimizer, learning rate, schedule and decay; all of them are ours.",
    ),
    "olmoe_1b": Recipe(
        fields=_adamw(
            lr=4.0e-4,
            schedule="cosine",
            warmup_fraction=0.0645,
            final_lr_fraction=0.1,
            batch_tokens=4_194_304,
            seq_len=4_096,
        ),
        source="Muennighoff et al. 2024, OLMoE (arXiv 2409.02060), released configuration of a "
        "1.3e11-token run (olmoe-8x1b-newhp-newds-cx5-fine1-normreorder): AdamW 4e-4, 8.4e9 "
        "tokens of warm-up, cosine to a tenth, 1,024 sequences of 4,096. Differs: norms, biases "
        "and embeddings are decayed there, here not. Balance loss 0.01 and z-loss 0.001 belong "
        "to the model. The final 5.1e12-token run warms up over 1.05e10 tokens: 0.2 %.",
        tokens=130_000_000_000,
    ),
    "olmoe_227m": Recipe(
        fields=_adamw(
            lr=4.0e-4,
            schedule="cosine",
            warmup_fraction=0.021,
            final_lr_fraction=0.1,
            batch_tokens=3_145_728,
            seq_len=4_096,
        ),
        source="The 227M active, 1.2B total OLMoE of Huang et al. 2025, UltraMemV2 (arXiv "
        "2508.18756): 4e-4, decay 0.1, 1.05e10 of 5e11 tokens warm-up, cosine. Batch as in the "
        "script released for UltraMemV2 of the same size (768 sequences). Not stated there: "
        "sequence length, final rate and betas, for which stand OLMoE's (4,096, a tenth, 0.9 and "
        "0.95).",
        tokens=500_000_000_000,
    ),
    "ultramem_151m": _ultramem(6.0e-4),
    "ultramem_680m": _ultramem(2.5e-4),
    "ultramem_1.6b": _ultramem(2.0e-4),
    "ultramem_6.5b": _ultramem(1.2e-4),
    "ultramem_v2": Recipe(
        fields=_adamw(
            lr=4.0e-4,
            schedule="cosine",
            warmup_fraction=0.02,
            final_lr_fraction=0.1,
            value_lr_ratio=4.0,
            value_lr_final_ratio=1.0,
            value_lr_decay_fraction=1.0,
            batch_tokens=3_145_728,
            seq_len=4_096,
        ),
        source="Huang et al. 2025, UltraMemV2 (arXiv 2508.18756) and its released script for 227M "
        "of 1.2B: values from 4 times the rate to 1 over the whole run. It has 1e10 of 5e11 tokens "
        "warm-up and 768 sequences. The paper finds a constant 1 better from 1.4e12 tokens on. Not "
        "stated: learning rate, sequence length, final rate and betas, for which stand those of "
        "its OLMoE comparison; whether values are decayed (here like the rest).",
        tokens=500_000_000_000,
    ),
    "engram": Recipe(
        fields=_adamw(
            lr=4.0e-4,
            schedule="wsd",
            warmup_fraction=0.02,
            decay_fraction=0.2,
            final_lr_fraction=0.1,
            value_lr_ratio=5.0,
            value_weight_decay=0.0,
            batch_tokens=5_242_880,
            seq_len=4_096,
        ),
        source="DeepSeek-AI 2026, Conditional Memory via Scalable Lookup (arXiv 2601.07372): "
        "tables at 5 times the rate and without decay (Adam), 2.62e11 tokens. Differs: the "
        "backbone is trained with Muon there, with AdamW here. Not checked against the text: "
        "1,280 sequences of 4,096 (50,000 steps give its tokens), learning rate, schedule, "
        "warm-up and decay of the rest.",
        tokens=50_000 * 5_242_880,
    ),
    "sparse_memory_lm": Recipe(
        fields=_adamw(
            lr=6.0e-4,
            schedule="cosine",
            warmup_fraction=0.05,
            final_lr_fraction=0.1,
            value_lr_ratio=4.0,
            value_weight_decay=0.0,
            batch_tokens=32_768,
            seq_len=1_024,
        ),
        source="An independent replication of Memory+ (github.com/re133/sparse-memory-lm, "
        "smlm/train.py and its report): AdamW 6e-4, values 2.4e-3 without decay, clipped apart. "
        "It has 5 % warm-up, cosine to a tenth, 32 sequences of 1,024, 5e8 tokens of Wikipedia. "
        "Everything is stated.",
        tokens=500_000_000,
    ),
    "pythia_70m": _pythia(1.0e-3),
    "pythia_160m": _pythia(6.0e-4),
    "pythia_410m": _pythia(3.0e-4),
    "pythia_1b": _pythia(2.5e-4, remark=" The README says 3e-4, the configuration file 2.5e-4."),
    "pythia_1.4b": _pythia(2.0e-4),
    "memoryformer_tiny": _memoryformer(3.0e-3, pythia="Pythia-70M"),
    "memoryformer_small": _memoryformer(1.8e-3, pythia="Pythia-160M"),
    "memoryformer_base": _memoryformer(9.0e-4, pythia="Pythia-410M"),
    "memoryformer_tiny_released": Recipe(
        fields=_adamw(
            lr=3.0e-3,
            schedule="cosine",
            warmup_fraction=0.01,
            final_lr_fraction=0.01,
            batch_tokens=2_097_152,
            seq_len=2_048,
            clip_values="together",
        ),
        source="The released configuration of MemoryFormer-tiny "
        "(github.com/C0-Design/MemoryFormer): as the paper but for a last rate of 1 % of the "
        "peak and 106,418 steps. Its `small` configuration contradicts the paper (6 layers, 8 "
        "heads, 3e-3) and has no recipe.",
        tokens=106_418 * 2_097_152,
    ),
    "lookup_ffn": Recipe(
        fields=_adamw(
            lr=1.0e-4,
            schedule="linear",
            warmup_fraction=0.04,
            final_lr_fraction=0.001,
            weight_decay=0.01,
            value_weight_decay=0.01,
            beta2=0.98,
            eps=1.0e-6,
            batch_tokens=32_768,
            seq_len=512,
        ),
        source="Zeng et al. 2023, LookupFFN (arXiv 2403.07221), released configuration "
        "lookup-t128-s8-bh4: Adam 1e-4, betas 0.9 and 0.98, eps 1e-6, decay 0.01. It warms up for "
        "10,000 of 250,000 steps, then falls linearly to a thousandth, with 64 sequences of 512. "
        "Differs: a masked encoder with dropout 0.1 there. Not stated: clipping (here 1).",
        tokens=250_000 * 32_768,
    ),
    "all_attention": Recipe(
        fields=_adamw(
            lr=2.5e-4,
            schedule="wsd",
            warmup_fraction=0.0094,
            decay_fraction=0.0588,
            final_lr_fraction=0.1,
            weight_decay=0.0,
            value_weight_decay=0.0,
            beta2=0.999,
            batch_tokens=16_384,
            seq_len=256,
        ),
        source="Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory (arXiv "
        "1907.01470), released WikiText-103 script: Adam 2.5e-4, 8,000 steps warm-up, clip 1. It "
        "takes 800,000 steps of 64 sequences of 256, then 50,000 at a tenth. Differs: that drop "
        "is a straight line here; dropout 0.3, adaptive span and a cache of 2,048 earlier tokens "
        "are missing; betas are taken for PyTorch's. Its character-level runs use Adagrad (0.07, "
        "clip 0.03, 32,000 steps warm-up, 64 sequences of 512), which AdamW cannot express.",
        tokens=850_000 * 16_384,
    ),
}
"""Name in `train.recipe` -> recipe, memories first."""


COLUMNS = (
    "recipe",
    "lr",
    "values",
    "schedule",
    "warm-up",
    "decay",
    "decay of values",
    "clip",
    "batch tokens",
    "seq_len",
    "tokens there",
)
"""Of tables of recipes: the name, then `cells`."""


_PAGE = """\
# Training recipes

`train: {{recipe: pythia_70m, tokens: 1_000_000_000}}` takes from the recipe what is not written;
whatever is written wins. `recipe: null` in an entry takes back the base's. The numbers enter a
trial's identity, the name does not. `memscale plan --recipes` prints this table. Batches are the
sources' own: write smaller ones for a small machine.

* values: learning rate of memory values over `lr`, where it falls from what to what.
* schedule: with the last rate over the peak.
* clip: the largest gradient norm, of memory values and all else apart or together
  (`train.clip_values`). Apart is this project's default. MemoryFormer has Pythia's optimizer, which
  clips both together.
* tokens there: of the source's own run; a recipe never sets `tokens`.

{table}

## Sources

{sources}

This page is written by `workloads/training/recipes.py`; change it there.
"""


def markdown() -> str:
    """Return docs/recipes.md, which a test compares with this."""
    table = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    table += [f"| {' | '.join((f'`{name}`', *cells(r)))} |" for name, r in RECIPES.items()]
    wrap = textwrap.TextWrapper(100, subsequent_indent="  ", break_on_hyphens=False)
    sources = [
        wrap.fill(f"* {', '.join(f'`{name}`' for name in names)}: {source}")
        for source, names in by_source().items()
    ]
    return _PAGE.format(table="\n".join(table), sources="\n".join(sources))


def by_source() -> dict[str, list[str]]:
    """Return source -> the recipes that are from there, in order."""
    found: dict[str, list[str]] = {}
    for name, recipe in RECIPES.items():
        found.setdefault(recipe.source, []).append(name)
    return found


def cells(recipe: Recipe) -> tuple[str, ...]:
    """Return a recipe's row in tables, without its name."""
    fields = recipe.fields
    values = f"{fields['value_lr_ratio']:.3g}"
    if fields.get("value_lr_final_ratio") is not None:
        values += f" to {fields['value_lr_final_ratio']:.3g}"
    schedule = str(fields["schedule"])
    if schedule != "constant":
        schedule += f" to {fields['final_lr_fraction']:g}"
    clip = "none" if fields["grad_clip"] is None else f"{fields['grad_clip']:g}"
    return (
        f"{fields['lr']:g}",
        values,
        schedule,
        f"{100 * fields['warmup_fraction']:.3g} %",
        f"{fields['weight_decay']:g}",
        f"{fields['value_weight_decay']:g}",
        clip if clip == "none" else f"{clip} {fields.get('clip_values', 'apart')}",
        f"{fields['batch_tokens']:,}",
        f"{fields['seq_len']:,}",
        "" if recipe.tokens is None else f"{recipe.tokens:.3g}",
    )

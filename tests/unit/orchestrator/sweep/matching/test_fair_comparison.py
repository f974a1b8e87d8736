"""Every architecture made equal to `dense` at 10m, by what a sweep file says and the real closed forms."""

from pathlib import Path

import pytest

from orchestrator.planning.pricing import account
from orchestrator.records.errors import ConfigError
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

BASE = """
name: fair
data: {source: biographies, n_people: 48}
train: {tokens: 1_000_000, batch_tokens: 8_192, seq_len: 256, lr: 1.0e-3}
model: {architecture: dense, preset: 10m}
trials:
  - grid: {model.preset: [10m]}
"""
COARSE = "memoryformer"
"""Its free dimension changes cost in steps of several per cent, so its FLOPs are matched by tokens."""


def _compared(folder: Path, entries: list[str]) -> dict[str, dict[str, float]]:
    file = folder / "fair.yaml"
    file.write_text(BASE + "".join(f"  - {entry}\n" for entry in entries))
    return {spec.architecture: account(spec) for spec in load_sweep(file).trials}


@pytest.mark.parametrize(
    ("quantity", "counted"),
    [
        ("training_flops", "training_flops"),
        ("active_params", "active_params"),
        ("bytes_per_token", "bytes_read_per_token"),
    ],
)
def test_equal_to_dense_within_a_percent(tmp_path, quantity, counted):
    entries = []
    for name in registry.architectures():
        if name == "dense":
            continue
        by_tokens = name == COARSE and quantity == "training_flops"
        solve = ", solve: tokens" if by_tokens else ""
        entries.append(
            f"{{set: {{model.architecture: {name}}}, match: {{{quantity}: dense{solve}}}}}"
        )

    numbers = _compared(tmp_path, entries)

    assert len(numbers) == len(entries) + 1
    for name, account_of in numbers.items():
        assert account_of[counted] == pytest.approx(numbers["dense"][counted], rel=0.01), name


def test_a_ladder_is_matched_rung_by_rung(tmp_path):
    file = tmp_path / "ladder.yaml"
    base = BASE.split("trials:")[0].replace("tokens: 1_000_000, ", "")
    ladder = "{ladder: {architectures: [moe, dense], sizes: [50_000, 200_000]}, match: {training_flops: dense}}"
    file.write_text(f"{base}trials:\n  - {ladder}\n")

    specs = load_sweep(file).trials
    flops = [account(spec)["training_flops"] for spec in specs]

    assert [spec.architecture for spec in specs] == ["moe", "moe", "dense", "dense"]
    assert flops[:2] == pytest.approx(flops[2:], rel=0.01)


def test_no_match_with_a_mixer_that_cannot_hold_the_sequence(tmp_path):
    entry = "{match: {total_params: linformer, solve: d_ff}, set: {train.seq_len: 4_096}}"
    message = "there is no linformer model to compare with: seq_len must be at most max_seq_len"
    with pytest.raises(ConfigError, match=message):
        _compared(tmp_path, [entry])


def test_no_mixer_is_made_too_short_for_the_sequence(tmp_path):
    module = registry.architecture("linformer")
    vocab_size = int(_compared(tmp_path, [])["dense"]["vocab_size"])
    short = module.Config(**{**module.PRESETS["10m"], "max_seq_len": 128}).param_count(vocab_size)
    match = f"{{total_params: {short.total}, solve: max_seq_len}}"

    with pytest.raises(ConfigError, match=r"seq_len: must be at most max_seq_len \(1\d\d\)"):
        _compared(tmp_path, [f"{{set: {{model.architecture: linformer}}, match: {match}}}"])


def test_equal_totals_by_slots_experts_and_tables(tmp_path):
    slots = "{set: {model.architecture: %s}, match: {total_params: moe, solve: %s}}"

    numbers = _compared(
        tmp_path,
        [
            "{set: {model.architecture: moe}}",
            slots % ("memory_plus", "n_keys"),
            slots % ("memory", "n_keys"),
            slots % ("peer", "n_keys"),
            slots % ("ultramem_v2", "n_keys"),
            slots % ("lookup_ffn", "total_tables"),
        ],
    )

    for name in ("memory_plus", "memory", "peer", "ultramem_v2", "lookup_ffn"):
        assert numbers[name]["total_params"] == pytest.approx(
            numbers["moe"]["total_params"], rel=0.01
        )

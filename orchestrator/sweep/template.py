"""Template of a sweep file: an architecture comparison with commented choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.sweep.registry import FAST_VALUES

Scale = Literal["laptop", "gpu"]
SCALES: tuple[Scale, ...] = get_args(Scale)
PRESETS: dict[Scale, str] = {
    "laptop": "[d16, d20, d24, d32, d48, d64]",
    "gpu": "[d48, d64, 1m, 3m, 10m, 30m]",
}
TRAIN: dict[Scale, str] = {
    "laptop": "{tokens: 665_600, batch_tokens: 1_024, seq_len: 64, lr: 2.0e-2}",
    "gpu": "{tokens: 100_000_000, batch_tokens: 65_536, seq_len: 512, lr: 3.0e-3}",
}
PEOPLE: dict[Scale, str] = {
    "laptop": "{source: biographies, n_people: 320, style: compact, n_cities: 50, n_years: 50}",
    "gpu": "{source: biographies, n_people: 22_000}",
}
VOCABULARY: dict[Scale, str] = {"laptop": "2_048", "gpu": "16_384"}
INVENTED = "biographies"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a sweep file is to say."""

    name: str
    architectures: Sequence[str]
    """The first is the one that the others are compared with."""
    data: str = INVENTED
    """`biographies`, a file of text, or a file of triples (.tsv)."""
    scale: Scale = "laptop"
    n_seeds: int = 3


def sweep_text(answers: Answers, *, file: str) -> str:
    """Return the text of a commented sweep file.

    Args:
        answers: What it is to say.
        file: Under which it will be saved, for the commands in its header.
    """
    base, *others = answers.architectures
    presets = PRESETS[answers.scale]
    lines = [
        f"# Question: {_question(base, others)}",
        f"# Look:     memscale plan {file}      (sizes, cost, mistakes; nothing starts)",
        f"# Run:      memscale submit {file}    (Ctrl-C checkpoints, submit again resumes)",
        f"# Read:     memscale report {answers.name}",
        f"name: {answers.name}",
        "",
        *_data(answers),
        "",
        "# How long each trial trains, and how. The learning rate decides a comparison: vary it",
        "# for every architecture alike, as in  grid: {train.lr: [5.0e-3, 1.0e-2, 2.0e-2]}.",
        f"train: {TRAIN[answers.scale]}",
        "",
        "# What each entry of `trials` starts from; any field of the architecture may stand here.",
        f"model: {{architecture: {base}, preset: {presets.strip('[]').split(',')[0]}}}",
        "",
        "trials:",
        "  # A verdict on a curve takes four sizes beyond its two or three coefficients.",
        *_entry(_rates(base), presets),
    ]
    if others:
        lines.append(f"  # The same sizes; `match` solves d_ff for the training FLOPs of {base}.")
    for other in others:
        lines += _entry({"model.architecture": other} | _rates(other), presets)
        lines.append(f"    match: {{training_flops: {base}}}")
    first = next((i for i, line in enumerate(lines) if "train.value_lr_ratio" in line), None)
    if first is not None:
        remark = "Memory values learn faster than the rest, as in their papers (3.3 to 10 times)."
        lines.insert(first, f"  # {remark}")
    lines += [
        "",
        "# Without several seeds a difference cannot be told from chance.",
        f"seeds: {list(range(answers.n_seeds))}",
        "",
        "# Not part of a trial's name: changing these trains nothing anew.",
        "resources: {gpus: auto, cpus: 1}   # gpus: 0.125 lets eight small trials share a GPU",
        "logging: {evaluations: 4, checkpoint_every_s: 30}",
    ]
    return "\n".join(lines) + "\n"


def _rates(architecture: str) -> dict[str, str]:
    return {"train.value_lr_ratio": "4.0"} if architecture in FAST_VALUES else {}


def _entry(settings: Mapping[str, str], presets: str) -> list[str]:
    """Return the lines of an entry of `trials` without its match."""
    lines = [f"grid: {{model.preset: {presets}}}"]
    if settings:
        lines.insert(
            0, f"set: {{{', '.join(f'{key}: {value}' for key, value in settings.items())}}}"
        )
    return [f"  {'-' if i == 0 else ' '} {line}" for i, line in enumerate(lines)]


def _question(base: str, others: Sequence[str]) -> str:
    if not others:
        return f"how does {base} improve with its size?"
    verb = "do" if len(others) > 1 else "does"
    return f"at equal training FLOPs, how {verb} {' and '.join(others)} compare with {base}?"


def _data(answers: Answers) -> list[str]:
    if answers.data == INVENTED:
        return [
            "# Invented people with facts to recall, each read about 100 times.",
            f"data: {PEOPLE[answers.scale]}",
        ]
    quoted = "'" + answers.data.replace("'", "''") + "'"
    vocab = VOCABULARY[answers.scale]
    if answers.data.removesuffix(".gz").endswith(".tsv"):
        return [
            "# Facts of yours: subject, relation, object. `templates:` names a file of wordings.",
            f"data: {{source: triples, path: {quoted}, vocab_size: {vocab}}}",
        ]
    return [
        "# Text of yours: plain, JSONL or parquet; a path may be a glob or a list.",
        f"data: {{source: text, path: {quoted}, vocab_size: {vocab}}}",
    ]

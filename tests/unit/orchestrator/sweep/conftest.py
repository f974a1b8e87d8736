"""Small stand-ins for architectures and data sources: sweep files need only their fields and closed forms."""

import math
import random
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from orchestrator.records.errors import ConfigError
from orchestrator.sweep.load import Sweep, load_sweep
from orchestrator.sweep.matching.step_timer import StepTimeError
from workloads.field_error import FieldError
from workloads.training.config import TrainConfig


@dataclass(frozen=True)
class Count:
    non_embedding: int
    total: int = 0
    memory_values: int = 0


@dataclass(frozen=True)
class Flops:
    total: float


@dataclass(frozen=True, kw_only=True)
class PlainConfig:
    FREE_DIMENSION: ClassVar[str] = "d_ff"
    d_model: int
    d_ff: int
    n_layers: int = 2
    dropout: float = 0.0
    skip: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "d_ff", "n_layers"):
            if getattr(self, name) < 1:
                raise FieldError(name, "must be at least 1", getattr(self, name))
        if self.d_ff < self.d_model // 100:
            rule = f"must be at least d_model / 100 ({self.d_model // 100})"
            raise FieldError("d_ff", rule, others=("d_model",))

    def param_count(self, vocab_size: int) -> Count:
        blocks = self.n_layers * (4 * self.d_model**2 + 3 * self.d_model * self.d_ff)
        return Count(blocks, blocks + vocab_size * self.d_model)

    def active_param_count(self, vocab_size: int) -> int:
        return self.param_count(vocab_size).non_embedding

    def bytes_per_token(self, vocab_size: int) -> dict[str, float]:
        return {"blocks": 2.0 * self.active_param_count(vocab_size), "embedding": 2.0}

    def flops_per_token(self, vocab_size: int, seq_len: int) -> Flops:
        blocks = self.param_count(vocab_size).non_embedding
        return Flops(2.0 * (blocks + vocab_size * self.d_model) + 2.0 * seq_len * self.d_model)

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> Self:
        if non_embedding_params < 100:
            rule, fix = f": no member is near {non_embedding_params}", "ask for at least 100"
            raise FieldError("non_embedding_params", rule, fix=fix)
        width = max(1, round((non_embedding_params / 20) ** 0.5))
        return cls(**{"d_model": width, "d_ff": 2 * width, **overrides})


@dataclass(frozen=True, kw_only=True)
class TableConfig(PlainConfig):
    n_keys: int = 16

    def param_count(self, vocab_size: int) -> Count:
        return replace(super().param_count(vocab_size), memory_values=self.n_keys)

    def flops_per_token(self, vocab_size: int, seq_len: int) -> Flops:
        return Flops(
            super().flops_per_token(vocab_size, seq_len).total + 4.0 * self.n_keys * self.d_model
        )


@dataclass(frozen=True, kw_only=True)
class MixerConfig(PlainConfig):
    """Reads sequences of a fixed length and looks ahead while it trains."""

    LONGEST_SEQUENCE_FIELD: ClassVar[str] = "window"
    window: int = 16

    @property
    def longest_sequence(self) -> int | None:
        return self.window

    @property
    def non_causal_reasons(self) -> dict[str, str]:
        if self.window <= 8:
            return {}
        return {"training": "the last token is mixed into all", "evaluation": "so it is"}


@dataclass(frozen=True, kw_only=True)
class NumbersConfig:
    n: int
    seed: int = 0
    vocab_size: ClassVar[int] = 100

    def files(self) -> dict[str, Path]:
        return {}


@dataclass(frozen=True, kw_only=True)
class FilesConfig:
    FORMAT: ClassVar[str] = "one fact per line"
    path: str | tuple[str, ...]
    extra: str | None = None
    vocab_size: ClassVar[int] = 100

    def files(self) -> dict[str, Path | tuple[Path, ...]]:
        if isinstance(self.path, tuple):
            named: dict[str, Path | tuple[Path, ...]] = {"path": tuple(Path(p) for p in self.path)}
        elif "*" in self.path:
            named = {"path": tuple(sorted(Path(self.path).parent.glob(Path(self.path).name)))}
        else:
            named = {"path": Path(self.path)}
        return named | ({} if self.extra is None else {"extra": Path(self.extra)})


class FakeTimer:
    """Answers like workloads/training/step/step_time.py: a step takes 10 ms and 0.1 ms for each of d_ff and n_keys."""

    def __init__(self, *, noise: float = 0.0, refuses: str = "") -> None:
        self.requests: list[Mapping[str, Any]] = []
        self.started = 0
        self._noise = noise
        self._refuses = refuses
        self._random = random.Random(0)

    def __enter__(self) -> Self:
        self.started += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def time(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        if self._refuses:
            message, _, fix = self._refuses.partition("; ")
            raise StepTimeError(message, fix)
        return {
            "seconds": [
                [self._step_s(model) for _ in range(10 * int(request["budget_s"]))]
                for model in request["models"]
            ],
            "device": "abacus",
            "n_threads": request["n_threads"],
            "versions": {"torch": "0.0"},
        }

    def _step_s(self, model: Mapping[str, Any]) -> float:
        step_s = 0.010 + 0.0001 * (model["d_ff"] + model.get("n_keys", 0))
        return step_s * math.exp(self._random.gauss(0.0, self._noise))


class FakeWorkloads:
    """Like orchestrator/sweep/registry.py, without torch."""

    def __init__(self, timer: FakeTimer | None = None) -> None:
        self._timer = timer

    def step_timer(self) -> FakeTimer:
        assert self._timer is not None, "this sweep should have nothing to measure"
        return self._timer

    def architectures(self) -> list[str]:
        return ["broken", "mixer", "plain", "table", "uninstalled", "without_presets"]

    def architecture(self, name: str) -> Any:
        presets = {"tiny": {"d_model": 8, "d_ff": 16}, "small": {"d_model": 16, "d_ff": 32}}
        if name == "uninstalled":
            raise ModuleNotFoundError("No module named 'flux'", name="flux")
        if name == "broken":
            raise ValueError("mutable default <class 'list'> for field windows is not allowed")
        if name == "without_presets":
            return SimpleNamespace(Config=PlainConfig)
        if name == "plain":
            only_plain = {"wide": {"d_model": 64, "d_ff": 16}}
            return SimpleNamespace(Config=PlainConfig, PRESETS={**presets, **only_plain})
        if name == "mixer":
            return SimpleNamespace(Config=MixerConfig, PRESETS=presets)
        return SimpleNamespace(Config=TableConfig, PRESETS=presets)

    def data_sources(self) -> list[str]:
        return ["files", "numbers"]

    def data_source(self, name: str) -> Any:
        return SimpleNamespace(Config={"files": FilesConfig, "numbers": NumbersConfig}[name])

    def train_config(self) -> Any:
        return TrainConfig

    def recipes(self) -> dict[str, Any]:
        fields = {"batch_tokens": 64, "seq_len": 16, "lr": 1e-2}
        return {
            "slow": SimpleNamespace(fields={**fields, "lr": 1e-3}),
            "wide": SimpleNamespace(fields={**fields, "batch_tokens": 1024, "schedule": "linear"}),
        }


HEADER = """
name: test
data: {source: numbers, n: 10}
train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}
model: {architecture: plain, preset: tiny}
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Sweep]:
    """Load a sweep from text; without `header=""` the text follows a header that works."""

    def load(text: str, *, header: str = HEADER, timer: FakeTimer | None = None) -> Sweep:
        file = tmp_path / "sweep.yaml"
        file.write_text(header + textwrap.dedent(text), encoding="utf-8")
        return load_sweep(file, workloads=FakeWorkloads(timer))

    return load


@pytest.fixture
def make_timer() -> type[FakeTimer]:
    """Make what measures step times, for `load`."""
    return FakeTimer


@pytest.fixture
def load_files(tmp_path: Path) -> Callable[..., Sweep]:
    """Load one sweep from several texts: file name -> what follows a header that works."""

    def load_files(
        texts: dict[str, str],
        *,
        headers: dict[str, str] | None = None,
        timer: FakeTimer | None = None,
    ) -> Sweep:
        for name, text in texts.items():
            header = (headers or {}).get(name, HEADER)
            (tmp_path / name).write_text(header + textwrap.dedent(text), encoding="utf-8")
        return load_sweep([tmp_path / name for name in texts], workloads=FakeWorkloads(timer))

    return load_files


@pytest.fixture
def problems(load: Callable[..., Sweep]) -> Callable[..., list[str]]:
    """Load a sweep that is broken and return its problems without the file's name."""

    def problems(text: str, **options: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, **options)
        return [str(problem).partition("sweep.yaml:")[2] for problem in caught.value.problems]

    return problems

"""The job of one rank: its share of one trial, and how it is to be run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from workloads.sharding.materialise import Dense, Layout, Place


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """One rank's share of one trial.

    The first four fields decide the result, the rest how it is computed.
    """

    data: Mapping[str, Any]
    """`source` and the fields of that source's Config."""
    model: Mapping[str, Any]
    """`architecture` and the fields of that architecture's Config."""
    train: Mapping[str, Any]
    """Fields of TrainConfig."""
    seed: int
    """Seeds the initial weights and the order of the data."""
    checkpoints: Path
    """Folder of this trial's checkpoints, shared by its ranks and attempts."""
    cache: Path
    """Folder where data sources keep what they prepared, shared by all trials."""
    data_sha256: Mapping[str, str] = field(default_factory=dict)
    """Content hash per field of `data` that names files (`workloads/data/file_hashes.py`)."""
    from_pretrained: Path | None = None
    """Folder with a trained model, in Hugging Face's or Meta's format, whose weights come first."""
    from_pretrained_sha256: str | None = None
    """Content hash of its files, as of submission; None is not compared."""
    log_every_steps: int = 10
    evaluations: int = 4
    """Evaluations over the run, evenly spaced, the last one after the last step."""
    usage_every_steps: int | None = None
    """Steps between reports of how memories and experts are used. None: at each evaluation."""
    checkpoint_every_s: float = 30.0
    """Seconds between checkpoints at least; more where writing one would take over a tenth of
    the time. 0: one after every step, whatever it costs."""
    micro_batch_tokens: int | None = None
    """Tokens per forward pass and rank, at least seq_len. None: on a GPU as many as fit by the
    memory estimate (`memory_estimate/micro_batch.py`), on a CPU as many as keep the logits in
    reusable memory (`device.MAX_CPU_LOGITS`)."""
    activation_checkpointing: bool | None = None
    """Whether blocks run again for the backward pass. None: on a GPU where the memory estimate asks
    for it, on a CPU never."""
    memory_halvings: int = 0
    """How often the memory of a whole GPU was too small for the trial."""
    n_threads: int = 1
    device: str = "auto"
    """auto, cpu or cuda."""
    gpus: float | None = None
    """GPUs that the trial holds, a fraction where it has a share of one; None: all that its ranks
    use. What is recorded of their use depends on it, and nothing else."""
    rank: int = 0
    world_size: int = 1
    memory_ranks: int = 1
    """Neighbouring ranks that hold one copy of the memory tables together; divides `world_size`."""
    memory_layout: Layout = "columns"
    """What each of them holds: some columns of all rows, or some rows."""
    memory_tables: Place = "device"
    """Memory of the tables and their moments: with the rest of the model, or the host's."""
    dense_parameters: Dense = "replicated"
    """Whether each rank holds all parameters but the tables, or a shard (`sharding/fsdp.py`)."""
    compile: bool = True
    """On a GPU, compile blocks and loss, and capture whole steps as CUDA graphs where that is
    possible (`step/compilation.py`, `step/cuda_graph.py`). A CPU always runs uncompiled."""
    rendezvous: Path | None = None
    """File through which several ranks find each other; on storage that they share."""
    address: str | None = None
    """Address of this rank for ranks on other machines; None: the machine's name."""


def section_config(package: str, key: str, section: Mapping[str, Any]) -> Any:
    """Return the Config that a section of a sweep file describes, lists of JSON as tuples.

    Args:
        package: Holds one module per choice, each with a `Config`.
        key: Field of the section that names the module: `source` or `architecture`.
        section: Its other fields are the Config's.
    """
    config = import_module(f"{package}.{section[key]}").Config
    fields = {name: value for name, value in section.items() if name != key}
    return config(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})

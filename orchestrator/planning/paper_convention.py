"""FLOPs of a block by the convention of MemoryFormer's tables, beside ours."""

from orchestrator.records.trial_spec import TrialSpec
from orchestrator.sweep import registry


def block_flops(spec: TrialSpec) -> float | None:
    """Return the FLOPs of one block and one sequence as MemoryFormer's tables count them.

    A multiply-add is one FLOP, attention covers the whole square, head, norms and embedding are
    left out (`workloads/accounting/paper_conventions.py`). None for architectures that those tables
    do not count, or for which we know no rule that gives their numbers.
    """
    cls = registry.architecture(spec.architecture).Config
    if not hasattr(cls, "paper_block_flops"):
        return None
    fields = {key: value for key, value in spec.model.items() if key != "architecture"}
    return float(registry.build_config(cls, fields).paper_block_flops(int(spec.train["seq_len"])))

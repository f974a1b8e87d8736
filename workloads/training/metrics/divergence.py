"""Divergence detection: a loss that is not finite, or exploded and stayed there."""

import math
from dataclasses import dataclass

from workloads.training.metrics.reporter import Diverged

MARGIN_NATS = 1.0
"""How far above the untrained model's loss counts as exploded."""
PATIENCE_STEPS = 100
"""How long it may stay there. A spike that the run recovers from is not divergence."""


@dataclass(kw_only=True)
class DivergenceDetector:
    """Follows the loss of every step. Its fields are part of a checkpoint."""

    untrained_loss: float | None = None
    """Loss of the first step, which is measured before any update: that of the untrained model."""
    exploded_steps: int = 0
    """Steps in a row with a loss more than `MARGIN_NATS` above it."""

    def observe(self, step: int, *, lr: float, loss: float, **norms: float) -> None:
        """Take in one step: its learning rate, loss and gradient norms by name.

        Raises:
            Diverged: If the loss or a gradient norm is not finite, or if the loss was more than
                MARGIN_NATS above the untrained model's at each of the last PATIENCE_STEPS steps.
        """
        for name, value in {"loss": loss, **norms}.items():
            if not math.isfinite(value):
                if self.untrained_loss is None:
                    raise Diverged(
                        f"step {step}: {name} is {value} before any update; look for the cause in "
                        "the model's code or initial values, as no train.lr mends that"
                    )
                raise Diverged(
                    f"step {step}: {name} is {value} at learning rate {lr:.3g}; lower train.lr"
                )
        if self.untrained_loss is None:
            self.untrained_loss = loss
        exploded = loss > self.untrained_loss + MARGIN_NATS
        self.exploded_steps = self.exploded_steps + 1 if exploded else 0
        if self.exploded_steps >= PATIENCE_STEPS:
            raise Diverged(
                f"step {step}: loss is {loss:.3f}, and was more than {MARGIN_NATS} nats above the "
                f"untrained model's {self.untrained_loss:.3f} for {PATIENCE_STEPS} steps in a row; "
                "lower train.lr"
            )

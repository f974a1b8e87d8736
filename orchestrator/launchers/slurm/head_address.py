"""How the nodes of pilots find Ray's head: a file on shared storage, so that no port needs to be agreed on before.

A head that is started again by Slurm offers another address. Whoever was sent for an earlier one, its generation, sees
that and leaves.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.errors import StoreError
from orchestrator.records.trial_dir import read_json, write_json

WAIT_S = 300.0
"""How long a node waits for its head: Ray is imported from shared storage, which is slow when many nodes do it at once."""


@dataclass(frozen=True, kw_only=True)
class HeadAddress:
    """Where the head listens."""

    address: str
    """host:port"""
    token: str
    """What Ray asks of everyone who connects: a private cluster stays private on a shared network."""


@dataclass(frozen=True, kw_only=True)
class HeadAddressFile:
    """One start of one head."""

    folder: Path
    generation: str
    """Job id of the head and how many times Slurm has started it again."""

    @property
    def draining(self) -> Path:
        """Folder of marks: on the node that a file here names, nothing new may start."""
        return self.folder / "leaving"

    def publish(self, offer: HeadAddress) -> None:
        """Tell everybody; only this user can read it."""
        self._write({"address": offer.address, "token": offer.token})

    def withdraw(self) -> None:
        """Tell everybody to leave."""
        self._write({"ended": True})

    def wait(
        self,
        *,
        timeout_s: float = WAIT_S,
        give_up: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> HeadAddress | None:
        """Return the offer of this generation, None if it has ended before or `give_up` says so.

        Raises:
            StoreError: If there is none for `timeout_s` seconds.
        """
        deadline = clock() + timeout_s
        while not give_up():
            record = self._read()
            if record.get("generation") == self.generation:
                if record.get("ended"):
                    return None
                return HeadAddress(address=record["address"], token=record["token"])
            if clock() > deadline:
                raise StoreError(
                    f"{self.folder / 'head.json'}: the head {self.generation} did not come up in {timeout_s:.0f} s; "
                    "see what its job printed in the folder submitit beside"
                )
            sleep(0.5)
        return None

    def is_current(self) -> bool:
        """Whether the head still runs, as far as it has said."""
        record = self._read()
        return record.get("generation") == self.generation and not record.get("ended")

    def _read(self) -> dict[str, str]:
        return read_json(self.folder / "head.json") or {}

    def _write(self, record: dict[str, object]) -> None:
        path = self.folder / "head.json"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(path, {"generation": self.generation, **record})

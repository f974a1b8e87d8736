"""Address of Ray's head for the nodes of pilots: a file on shared storage.

No port needs to be agreed on before. A head that Slurm has restarted publishes another address.
Each start is a generation: nodes that were submitted for an earlier one see a later one and leave.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json

WAIT_S = 300.0
"""How long a node waits for its head: importing Ray from shared storage is slow when many nodes do
it at once."""


@dataclass(frozen=True, kw_only=True)
class HeadAddress:
    """Address and token of a head."""

    address: str
    """host:port"""
    token: str
    """Whoever connects must show it: the cluster stays private on a shared network."""


@dataclass(frozen=True, kw_only=True)
class HeadAddressFile:
    """The file in which one start of one head publishes its address."""

    folder: Path
    generation: str
    """Job id of the head and how many times Slurm has started it again."""

    @property
    def draining(self) -> Path:
        """Folder with a file for each node on which nothing new may start."""
        return self.folder / "leaving"

    def publish(self, head: HeadAddress) -> None:
        """Publish the address; only this user can read it."""
        self._write({"address": head.address, "token": head.token})

    def withdraw(self) -> None:
        """Tell all nodes to leave; where the sweep's folder is gone, they leave by themselves."""
        with suppress(FileNotFoundError):
            self._write({"ended": True})

    def wait(
        self,
        *,
        timeout_s: float = WAIT_S,
        give_up: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> HeadAddress | None:
        """Return this generation's address; None if it has ended, or `give_up` returns True.

        A generation has ended when a later one has published its address.

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
            if record and _starts(record["generation"]) > _starts(self.generation):
                return None
            if clock() > deadline:
                raise StoreError(
                    f"{self.folder / 'head.json'}: the head {self.generation} did not come up in "
                    f"{timeout_s:.0f} s; see what its job printed in the folder submitit beside"
                )
            sleep(0.5)
        return None

    def is_current(self) -> bool:
        """Return whether the head still runs, as far as the file says."""
        record = self._read()
        return record.get("generation") == self.generation and not record.get("ended")

    def _read(self) -> dict[str, str]:
        return read_json(self.folder / "head.json") or {}

    def _write(self, record: dict[str, object]) -> None:
        path = self.folder / "head.json"
        self.folder.mkdir(exist_ok=True, mode=0o700)
        write_json(path, {"generation": self.generation, **record}, private=True)


def _starts(generation: str) -> int:
    """Return how many times Slurm had started the head again."""
    return int(generation.rpartition("/")[2])

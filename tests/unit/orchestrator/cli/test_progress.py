"""What is told of a running sweep where there is no terminal to redraw (`submit -q`)."""

import dataclasses
import io

from rich.console import Console

from orchestrator.cli.render.progress import LiveSweep, status_table
from orchestrator.control.status import SweepStatus

STATUS = SweepStatus(
    sweep="s",
    submission=1,
    trials=(),
    controller_alive=True,
    controller="pid 1 on here",
    stopping=False,
    time_left_s=None,
    updated_at=0.0,
)
FULL = dataclasses.replace(STATUS, full_disk="the disk of runs/s is full since about noon: 0 free")


def test_a_full_disk_is_told_at_once_and_when_it_is_over():
    console = Console(width=200, file=io.StringIO(), highlight=False)
    with LiveSweep(console, quiet=True) as live:
        for status in (STATUS, STATUS, FULL, FULL, STATUS):
            live.update(status)
    console.print(status_table(FULL))

    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert [FULL.full_disk == line for line in lines[:4]] == [False, False, True, False]
    assert lines.count(FULL.full_disk) == 2, "once in lines, once in the table"

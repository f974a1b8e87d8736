"""Command `memscale`: it parses, calls a function of another package, and prints."""

import os
import sys

from orchestrator.cli.app import app

# isort: off
from orchestrator.cli import (  # noqa: F401 -- as in --help
    init, plan, submit, jobs, analyse, evaluate, generate, export, ui, doctor, data,
)  # fmt: skip

# isort: on


def main() -> None:
    """Entry point of the `memscale` command."""
    # Output piped into a program that has ended (`memscale status | head`) is no error.
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)

"""The command `memscale`: parse, call, print. Everything it does is a function of another package; a file here is a few verbs."""

import os
import sys

from orchestrator.cli.app import app

# isort: off
from orchestrator.cli import plan, submit, jobs, analyse, ui, doctor  # noqa: F401 -- in the order of --help

# isort: on


def main() -> None:
    """Entry point of the `memscale` command."""
    # Output piped into a program that has ended (`memscale status | head`) is no error.
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)

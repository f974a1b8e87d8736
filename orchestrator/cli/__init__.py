"""Command `memscale`: it parses, calls a function of another package, and prints."""

import os
import sys

from orchestrator.cli.app import app

# `--help` lists the commands in the order of these imports.
# isort: off
from orchestrator.cli import init, plan, submit, jobs, analyse, evaluate  # noqa: F401
from orchestrator.cli import generate, export, ui, doctor, data  # noqa: F401

# isort: on


def main() -> None:
    """Entry point of the `memscale` command."""
    # Output piped into a program that has ended (`memscale status | head`) is no error.
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)

"""Command `memscale`: it parses, calls a function of another package, and prints."""

import codecs
import io
import os
import sys

from orchestrator.cli.app import app
from orchestrator.node.compute_variables import set_for_computing

# `--help` lists the commands in the order of these imports.
# isort: off
from orchestrator.cli import init, plan, submit, jobs, analyse, evaluate  # noqa: F401
from orchestrator.cli import generate, export, ui, doctor, data  # noqa: F401

# isort: on


def main() -> None:
    """Entry point of the `memscale` command."""
    # Before anything imports torch: planning does, and what it starts inherits the cores.
    set_for_computing(os.environ)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of another encoding (Latin-1) shows `?` for what it lacks. UTF-8 lacks only the
        # bytes of paths that are none, which stay as they are.
        is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "replace")
    # Output piped into a program that has ended (`memscale status | head`) is no error.
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)

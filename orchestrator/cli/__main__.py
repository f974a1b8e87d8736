"""`python -P -m orchestrator.cli`: the command where it is on no PATH."""

import sys
from pathlib import Path

if not sys.flags.safe_path:
    # Without -P the current folder comes first, and a file `workloads.py` there would shadow ours.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from orchestrator.cli import main

if __name__ == "__main__":
    main()

"""`python -m orchestrator.cli`: the command where it is on no PATH."""

from orchestrator.cli import main

if __name__ == "__main__":
    main()

"""What `make test-mutants` puts into a copy still fits the code."""

import subprocess
import sys
from pathlib import Path


def test_the_list_of_faults_fits_the_code():
    """Whoever changes a line that a fault replaces changes the fault's entry in mutants.toml."""
    script = Path(__file__).with_name("mutants.py")
    check = [sys.executable, script, "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr

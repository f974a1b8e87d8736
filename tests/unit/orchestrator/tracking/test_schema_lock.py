"""The lock on making a store's tables: who may only read a store that exists goes without."""

import os
import stat

import pytest

from orchestrator.tracking.mlflow_client import TrackerError, schema_lock

NOBODY = 65534


def by_nobody(folder):
    """Return what another user, who may only read the folder, gets from its store's lock."""
    folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)  # as root: folders above it may be closed
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            # By the link of the process, which needs no way through closed folders.
            with schema_lock("sqlite:////proc/self/cwd/mlflow.db"):
                os._exit(0)
        except TrackerError:
            os._exit(1)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_store_that_one_may_only_read_needs_no_lock(tmp_path):
    assert by_nobody(tmp_path) == 1, "its tables cannot be made"
    (tmp_path / "mlflow.db").touch(0o644)
    (tmp_path / "mlflow.db").chmod(0o644)

    assert by_nobody(tmp_path) == 0
    assert not (tmp_path / "mlflow.db.lock").exists()

    with schema_lock(f"sqlite:///{tmp_path}/mlflow.db"):
        pass
    assert stat.S_IMODE((tmp_path / "mlflow.db.lock").stat().st_mode) in (0o600, 0o660, 0o666)
    (tmp_path / "mlflow.db.lock").chmod(0o600)
    assert by_nobody(tmp_path) == 0

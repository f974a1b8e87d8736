"""The private folder of a cluster against other users, other namespaces and planted files."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.launchers.ray_embedded import RayEnvironment
from orchestrator.node import private_folder
from orchestrator.records.errors import ExperimentError

NOBODY = 65534
pytestmark = pytest.mark.faults
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
ATTACK = """
import os, sys
folder, target = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
def tries(action, *args):
    try:
        action(*args)
    except OSError:
        return
    print(action.__name__, *args)
session = f"{folder}/r/session_1"
tries(os.listdir, folder)
tries(os.rename, f"{session}/logs", f"{session}/old")
tries(os.symlink, target, f"{session}/other")
tries(os.rename, folder, f"{folder}.old")
tries(os.rmdir, folder)
tries(os.unlink, f"{folder}/lock")
"""
REMOVE = """
import sys
from pathlib import Path
from orchestrator.node.private_folder import remove_leftovers
remove_leftovers(Path(sys.argv[1]))
"""


@pytest.fixture
def shared():
    """A folder like /tmp, which every user may enter."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def other_identity(path, change):
    lock = path / "lock"
    lock.write_text(change(lock.read_text()))


def test_a_folder_is_closed_to_others_and_kept_while_its_lock_is_held(tmp_path):
    folder = private_folder.create(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700

    private_folder.remove_leftovers(tmp_path)
    assert folder.path.is_dir()

    folder.release()
    private_folder.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "0" * 36 + text[36:],  # made before the machine was started, or on another
        lambda text: text.replace("pid:[", "pid:[9"),  # a container that shares /tmp
        lambda text: "",  # being made
    ],
    ids=["boot", "namespace", "unfinished"],
)
def test_folders_of_another_boot_or_namespace_are_left_alone(tmp_path, change):
    folder = private_folder.create(tmp_path)
    folder.release()
    other_identity(folder.path, change)

    private_folder.remove_leftovers(tmp_path)

    assert folder.path.is_dir()


def test_links_and_folders_that_only_have_the_name_are_left_alone(tmp_path):
    real = private_folder.create(tmp_path / ".." / tmp_path.name)
    real.release()
    target = tmp_path / "target"
    real.path.rename(target)
    (tmp_path / "ms-link").symlink_to(target)
    (tmp_path / "ms-paint").mkdir(mode=0o700)
    (tmp_path / "ms-open").mkdir(mode=0o700)
    shutil.copy(target / "lock", tmp_path / "ms-open" / "lock")
    (tmp_path / "ms-open").chmod(0o777)
    before = sorted(tmp_path.rglob("*"))

    private_folder.remove_leftovers(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before


@as_root
def test_folders_of_other_users_are_left_alone(tmp_path):
    folder = private_folder.create(tmp_path)
    folder.release()
    os.chown(folder.path, NOBODY, NOBODY)

    private_folder.remove_leftovers(tmp_path)

    assert folder.path.is_dir()


@as_root
def test_another_user_can_neither_enter_nor_replace_the_folder_in_which_ray_writes(shared):
    folder = private_folder.create(shared)
    target = shared / "target"
    target.mkdir(mode=0o755)
    logs = folder.path / "r" / "session_1" / "logs"
    logs.mkdir(parents=True)
    for opened in (logs, logs.parent, logs.parent.parent):
        opened.chmod(0o777)  # as Ray does

    def attack():
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", ATTACK, str(folder.path), str(target)],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        ).stdout

    assert attack() == ""
    assert logs.is_dir()
    folder.path.chmod(0o777)
    assert "rename" in attack(), "the attack works where it is not prevented"
    folder.release()


@as_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_live_folder_survives_a_search_from_another_pid_namespace(tmp_path):
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this container may not make PID namespaces")
    held, free = private_folder.create(tmp_path), private_folder.create(tmp_path)
    free.release()

    subprocess.run([*inside, sys.executable, "-c", REMOVE, str(tmp_path)], check=True)

    assert held.path.is_dir()
    assert free.path.is_dir(), "whether its owner lives cannot be seen from there"
    held.release()


def test_a_folder_in_which_others_may_rename_is_not_used(tmp_path, monkeypatch):
    def tempdir(path):
        monkeypatch.setattr(private_folder.tempfile, "gettempdir", lambda: str(path))

    monkeypatch.setattr(private_folder, "LONGEST_ROOT", 1000)
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir(mode=0o700)
    shared.mkdir()
    shared.chmod(0o777)

    tempdir(own)
    assert private_folder.safe_root() == own
    tempdir(shared)
    assert private_folder.safe_root() == Path("/tmp")
    shared.chmod(0o1777)
    assert private_folder.safe_root() == shared
    shared.chmod(0o777)
    monkeypatch.setattr(private_folder, "FALLBACK", shared)
    with pytest.raises(ExperimentError, match=r"may rename folders in it .*chmod \+t"):
        private_folder.safe_root()


def test_the_watchdog_of_a_cluster_holds_the_lock_and_deletes_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(private_folder, "safe_root", lambda: tmp_path)
    environment = RayEnvironment()

    folder = environment.create({})

    (private,) = tmp_path.iterdir()
    assert folder == private / "r"
    private_folder.remove_leftovers(tmp_path)
    assert private.is_dir()
    environment.close()
    assert list(tmp_path.iterdir()) == []

"""The pinned versions install on every Python that the project promises, the first patch releases too."""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINNED = {
    canonicalize_name(requirement.name): requirement.specifier
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for requirement in [Requirement(line)]
}
OLDEST = "3.11.0"


def test_the_oldest_python_is_the_one_that_the_project_promises():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert OLDEST in SpecifierSet(project["requires-python"])
    assert "3.10.99" not in SpecifierSet(project["requires-python"])


def test_pinned_versions_install_on_the_oldest_python():
    """As far as they are installed here, since their metadata says so."""
    wanted = {
        found.name: found.metadata.get("Requires-Python")
        for found in metadata.distributions()
        if found.version in PINNED.get(canonicalize_name(found.name), SpecifierSet("<0"))
    }

    assert len(wanted) > len(PINNED) / 2
    assert {
        name: versions
        for name, versions in wanted.items()
        if versions is not None and OLDEST not in SpecifierSet(versions)
    } == {}

"""What the documentation says of every architecture is what the code says."""

import re
from pathlib import Path

import pytest

from orchestrator.control import node_exclusion, retry_policy
from orchestrator.node import hang_detection, supervisor
from orchestrator.planning import design_checks
from orchestrator.records.trial_spec import Logging, Outcome, Retries
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

PAGE = (Path(__file__).parents[2] / "docs" / "architectures.md").read_text()
UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def _number(cell: str) -> float:
    match = re.fullmatch(r"([\d.]+) ?([kMG]?)B?", cell.strip())
    assert match, cell
    return float(match[1]) * UNITS[match[2]]


ROWS = dict(re.findall(r"^\| \[(\w+)\]\(#\w+\) \|(.*)\|$", PAGE, flags=re.MULTILINE))


def test_rows_are_of_architectures_and_have_sections():
    assert {"dense", "memory_plus"} <= set(ROWS) <= set(registry.architectures())
    for name in ROWS:
        section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for topic in ("Cite", "ontested"):
            assert topic in section, (name, topic)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_numbers_of_a_row_are_those_of_the_code(name):
    """`python docs/architecture_rows.py` prints the rows."""
    module = registry.architecture(name)
    config = module.Config(**module.PRESETS["10m"])
    count = config.param_count(8192)
    expected = [
        count.total,
        config.active_param_count(8192),
        count.memory_values,
        config.flops_per_token(8192, 1024).total,
        sum(config.bytes_per_token(8192).values()),
        sum(config.bytes_per_token(8192, batch_tokens=64).values()),
    ]

    found = [_number(cell) for cell in ROWS[name].split("|")[2:]]

    assert found == pytest.approx(expected, rel=6e-3)


DOCS = Path(__file__).parents[2]
PAGES = [DOCS / "README.md", *sorted((DOCS / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        if path.startswith("http"):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert heading in slugs, target


def test_no_sweep_carries_a_placeholder():
    for file in (DOCS / "sweeps").rglob("*.yaml"):
        assert "EXPECT" not in file.read_text(), file


def test_every_outcome_has_its_row_and_the_numbers_are_those_of_the_code():
    page = (DOCS / "docs" / "failures.md").read_text()
    first_cells = re.findall(r"^\| (`.*?`) \|", page, flags=re.MULTILINE)

    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == set(Outcome)
    retries = Retries()
    for said in (
        f"`retries: {{failure: {retries.failure}, preemption: {retries.preemption}}}`",
        f"for {hang_detection.STEPS} median steps, and for at least {hang_detection.FLOOR_S:.0f} s",
        f"or {hang_detection.OTHERWISE_S:.0f} s\nbefore the first step",
        f"within {supervisor.STOP_TIMEOUT_S:.0f} s, or outlive a failed one by {supervisor.AFTER_FAILURE_S:.0f} s",
        f"{Logging().checkpoint_every_s:.0f} s by default",
    ):
        assert said in page, said
    assert (retry_policy.STUCK_ATTEMPTS, node_exclusion.MIN_CONFIGURATIONS) == (5, 3)


@pytest.mark.parametrize("page", ["README.md", "docs/first-sweep.md", "docs/sweep-files.md"])
def test_the_sweep_that_a_page_begins_with_is_a_fair_one(page, tmp_path):
    shown = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    (text,) = [block for block in shown if "\nname: memory_recall\n" in block]
    (tmp_path / "shown.yaml").write_text(text)

    trials = load_sweep(tmp_path / "shown.yaml").trials

    assert {trial.architecture for trial in trials} == {"dense", "memory_plus"}
    assert [note for note in design_checks.notes(trials) if "train." in note] == []


def test_the_code_on_the_page_for_architectures_is_that_of_its_example():
    page = (DOCS / "docs/add-an-architecture.md").read_text(encoding="utf-8")
    example = (DOCS / "workloads/architectures/latent_attention.py").read_text(encoding="utf-8")
    shown = [
        line.strip()
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
        if "=" in line and "(" in line
    ]

    assert len(shown) == 5
    assert [line for line in shown if line not in example] == []

"""Trial ids made for many seeds at once are those that each trial has by itself."""

import dataclasses
import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.trial_spec import TrialSpec, canonical_json

texts = st.text() | st.sampled_from(['"seed":0', ',"seed":1,', "}"])
sections = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=4)


@given(sections, sections, sections, st.lists(st.integers(0, 2**31), max_size=4, unique=True))
def test_ids_of_many_seeds_are_those_of_each(data: Any, model: Any, train: Any, seeds: Any) -> None:
    spec = TrialSpec(
        sweep="s", data=data, model={**model, "architecture": "a"}, train=train, seed=7
    )

    for seed, made in zip(seeds, spec.with_seeds(seeds, origin="here"), strict=True):
        alone = dataclasses.replace(spec, seed=seed, origin=f"here, seed {seed}")
        text = canonical_json(alone.identity())
        assert made == alone
        assert made.trial_id == f"a-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        assert alone.trial_id == made.trial_id
        assert alone.configuration_id == made.configuration_id == _with_seed_0(alone).trial_id
        priced = made.with_accounting({"steps": 1.0})
        assert (priced.trial_id, priced.accounting) == (made.trial_id, {"steps": 1.0})
        assert priced.to_json() == {"trial_id": made.trial_id, **dataclasses.asdict(priced)}


def _with_seed_0(spec: TrialSpec) -> TrialSpec:
    return dataclasses.replace(spec, seed=0)

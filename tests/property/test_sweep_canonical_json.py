"""The canonical form that names trials: one text per meaning."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.trial_spec import canonical_json

# Below 2**53 every whole number has its float, so 3 and 3.0 mean the same.
scalars = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_it_keeps_the_meaning(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(values)
def test_it_is_its_own_canonical_form(value: Any) -> None:
    text = canonical_json(value)

    assert canonical_json(json.loads(text)) == text


@given(values)
def test_the_order_of_keys_is_no_part_of_it(value: Any) -> None:
    assert canonical_json(shuffled(value)) == canonical_json(value)


@given(st.dictionaries(st.text(), values), st.text())
def test_an_absent_key_and_none_are_the_same(value: dict[str, Any], key: str) -> None:
    value.pop(key, None)

    assert canonical_json({**value, key: None}) == canonical_json(value)


@given(st.integers(-(2**53), 2**53))
def test_a_whole_number_is_the_same_with_and_without_point(number: int) -> None:
    assert canonical_json(float(number)) == canonical_json(number)


@given(st.lists(values), st.lists(values))
def test_different_lists_have_different_forms(one: list[Any], other: list[Any]) -> None:
    # True == 1 in Python but not in a config, hence the comparison of the JSON texts.
    def whole(value: Any) -> Any:
        if isinstance(value, float) and value == int(value):
            return int(value)
        if isinstance(value, dict):
            return {key: whole(item) for key, item in value.items()}
        return [whole(item) for item in value] if isinstance(value, list) else value

    same = json.dumps(whole(one), sort_keys=True) == json.dumps(whole(other), sort_keys=True)
    assert (canonical_json(one) == canonical_json(other)) == same

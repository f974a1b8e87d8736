import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.scaling.equal_cost import equal_cost


def table_of(rows):
    names = ("architecture", "training_flops", "training_tokens", "seed", "loss")
    table = pd.DataFrame(rows, columns=names)
    key = table[["architecture", "training_flops", "training_tokens"]].astype(str)
    return table.assign(configuration=key.agg(" ".join, axis=1))


def two(*, shift=0.0, offset=1.0, seeds=3, noise=0.01, sizes=6):
    """Losses on one curve; the second architecture's lie `shift` below it, at `offset` the FLOPs."""
    generator = np.random.default_rng(0)
    rows = []
    for flops in np.geomspace(1e10, 1e12, sizes):
        for seed in range(seeds):
            for name, x, below in (("dense", flops, 0.0), ("memory", flops * offset, shift)):
                value = 2 + (x / 1e9) ** -0.3 - below + noise * generator.standard_normal()
                rows.append((name, x, 1e6, seed, value))
    return table_of(rows)


def test_at_exactly_equal_flops_one_size_is_welchs_test(stats):
    table = two(shift=0.02, sizes=1)

    (found,) = equal_cost(table, reference="dense").differences

    sides = [table.loc[table["architecture"] == name, "loss"] for name in ("memory", "dense")]
    oracle = stats.ttest_ind(*sides, equal_var=False)
    assert found.largest.value == pytest.approx(sides[0].mean() - sides[1].mean())
    assert found.mean.p == pytest.approx(oracle.pvalue) == found.p_holm
    assert not found.interpolated


def test_between_sizes_the_reference_is_interpolated_and_outside_there_is_no_number():
    table = two(shift=0.02, offset=1.3, noise=0.0, seeds=2)

    (found,) = equal_cost(table, reference="dense").differences

    assert (found.n_sizes, found.n_unmatched, found.interpolated) == (5, 1, True)
    assert found.mean.value == pytest.approx(-0.02, abs=1e-3)
    assert found.mean.low < -0.02 < found.mean.high


def test_interpolation_makes_no_difference_of_none():
    table = two(shift=0.0, offset=1.3, noise=1e-4)

    (found,) = equal_cost(table, reference="dense").differences

    assert found.verdict == "not told apart"


def test_the_correction_is_for_all_comparisons():
    table = two(shift=0.05)
    third = table[table["architecture"] == "memory"].assign(architecture="third")
    third["configuration"] = "third " + third["configuration"]

    found = equal_cost(pd.concat([table, third]), reference="dense")

    assert found.n_corrected == 2
    assert [d.p_holm for d in found.differences] == pytest.approx(
        [2 * d.mean.p for d in found.differences]
    )
    assert {d.verdict for d in found.differences} == {"better"}


def test_other_data_and_one_seed_are_no_comparison():
    table = two(shift=0.05)
    other = table.assign(**{"data.n_people": np.where(table["architecture"] == "dense", 1, 2)})

    assert equal_cost(other, reference="dense").differences == []
    assert equal_cost(other, reference="dense").unmatched == [
        "at equal training FLOPs no dense run is on the data of memory; train dense on them"
    ]
    (one_seed,) = equal_cost(two(seeds=1), reference="dense").differences
    assert (one_seed.p_holm, one_seed.verdict) == (None, "no interval")


@pytest.mark.parametrize("n_left_out", [0, 1])
def test_match_of_a_size_that_is_left_out_does_not_count(n_left_out):
    """The larger size was made equal to dense; the smaller is so by itself."""
    table = matched({"training_flops": None, "solve": "d_ff"}, equal="training_flops")
    table = table[table["model.d_ff"] == 8]
    larger = table["preset"] == "d16"
    table["match.training_flops"] = table["match.training_flops"].where(larger)
    some = table[~(larger & (table["seed"] > 0))] if n_left_out else table

    found = equal_cost(some, reference="dense").differences[0]

    assert (found.measure.name, found.n_left_out) == ("flops", n_left_out)
    assert found.by_match == (not n_left_out)


def test_seeds_that_every_size_lacks_are_named_too():
    table = two(shift=0.02, sizes=2).assign(preset="d12")
    one = (table["architecture"] == "dense") & (table["seed"] > 0)

    (found,) = equal_cost(table[~one], reference="dense").differences

    assert (found.n_sizes, found.n_left_out, found.verdict) == (2, 0, "no interval")
    assert found.missing_seeds == ("seeds 1 and 2 of dense d12",) * 2


def test_a_seed_that_both_sides_lack_is_one_that_others_of_the_sweep_have():
    table = two(shift=0.02, sizes=1).assign(preset="d12")
    third = table[table["architecture"] == "memory"].assign(architecture="third")
    third["configuration"] = "third " + third["configuration"]

    found = equal_cost(pd.concat([table[table["seed"] == 0], third]), reference="dense")

    missing = {d.candidate: d.missing_seeds for d in found.differences}
    of_dense, of_memory = "seeds 1 and 2 of dense d12", "seeds 1 and 2 of memory d12"
    assert missing == {"memory": (of_memory, of_dense), "third": (of_dense,)}


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=6).filter(
        lambda counts: any(min(pair) > 1 for pair in counts)
    )
)
def test_sizes_of_one_seed_change_nothing_of_the_others(counts):
    table = two(shift=0.02, sizes=len(counts))
    size = table["training_flops"].rank(method="dense").astype(int) - 1
    side = (table["architecture"] == "memory").astype(int)
    limit = pd.Series([counts[i][j] for i, j in zip(size, side, strict=True)])
    several = [min(pair) > 1 for pair in counts]
    some = table[table["seed"] < limit]

    (found,) = equal_cost(some, reference="dense").differences
    (of_several,) = equal_cost(some[[several[i] for i in size[some.index]]], reference="dense").differences  # fmt: skip

    assert (found.mean, found.largest) == (of_several.mean, of_several.largest)
    assert found.p_holm is not None
    assert (found.n_sizes, found.n_left_out) == (sum(several), len(several) - sum(several))
    assert found.n_configurations == len(counts)
    assert len(found.missing_seeds) == sum(n == 1 for pair in counts for n in pair)


def test_the_seed_that_a_size_lacks_is_named():
    table = two(shift=0.02, seeds=2).assign(preset="d12")
    last = table["training_flops"] == table["training_flops"].max()
    lacks = last & (table["architecture"] == "memory") & (table["seed"] == 0)

    (found,) = equal_cost(table[~lacks], reference="dense").differences

    assert found.missing_seeds == ("seed 0 of memory d12",)
    assert found.largest_amount < table["training_flops"].max()


def test_too_few_sizes_of_the_reference_are_not_called_too_small():
    """Memory lies between the two sizes of dense."""
    table = two(shift=0.05, offset=1.3, sizes=2)
    table = table[(table["architecture"] == "dense") | (table["training_flops"] < 1e11)]

    assert equal_cost(table, reference="dense").unmatched == [
        "at equal training FLOPs dense has fewer than 3 sizes with the training tokens of memory,"
        " too few to interpolate; add sizes on both sides of that cost, or use match"
    ]


@pytest.mark.parametrize("solved", [False, True])
def test_other_tokens_are_not_called_another_size(solved):
    table = two(shift=0.05, offset=1.3)
    of_memory = table["architecture"] == "memory"
    table["training_tokens"] = np.where(of_memory, 2e6, 1e6)
    if solved:
        table["match.training_flops"] = np.where(of_memory, "dense", None)
        table["match.solve"] = np.where(of_memory, "tokens", None)

    (why,) = equal_cost(table, reference="dense").unmatched

    assert why == "at equal training FLOPs no dense run has the training tokens of memory" + (
        ", since match solved for tokens; let it solve for a field of the model"
        if solved
        else "; train 3 sizes of dense or more for as many, or use match"
    )


def test_one_architecture_compares_nothing_and_blames_nothing():
    table = two().assign(train_seconds=12.5)

    found = equal_cost(table[table["architecture"] == "dense"], reference="dense")

    assert (list(found.differences), list(found.unmatched)) == ([], [])


def on_a_preset(preset, *, seeds=3):
    """Tables of three sizes on a preset, whose FLOPs no dense run has."""
    generator = np.random.default_rng(1)
    rows = []
    for size, (name, flops) in enumerate(
        [("dense", 1e10), *(("memory", 1e10 * (1.1 + 0.1 * i)) for i in range(3))]
    ):
        for seed in range(seeds):
            loss = 2 - 0.05 * size + 0.001 * generator.standard_normal()
            rows.append((name, flops, 1e6, seed, loss))
    table = table_of(rows).assign(preset=preset)
    return table.assign(configuration=preset + " " + table["configuration"])


def test_what_is_added_to_a_preset_is_compared_at_the_preset():
    table = pd.concat([on_a_preset("3m"), on_a_preset("10m").assign(training_tokens=2e6)])
    memory = table[table["architecture"] == "memory"]
    names = {c: c.split(" ", 2)[1] for c in table["configuration"]}
    names |= {c: f"memory {flops:.2g}" for c, flops in memory[["configuration", "training_flops"]].itertuples(index=False)}  # fmt: skip

    found = equal_cost(table, reference="dense", series=names)

    first = [d for d in found.differences if d.measure.name == "base"]
    assert list(found.differences)[:3] == first
    assert [d.candidate for d in first] == ["memory 1.1e+10", "memory 1.2e+10", "memory 1.3e+10"]
    assert [d.mean.value for d in first] == pytest.approx([-0.05, -0.10, -0.15], abs=2e-3)
    assert all((d.n_sizes, d.verdict) == (2, "better") for d in first)


def test_equal_flops_at_every_size_leave_out_the_preset():
    """Each further comparison costs all others some of their power."""
    found = equal_cost(two(shift=0.05).assign(preset="3m"), reference="dense")

    assert {d.measure.name for d in found.differences} == {"flops"}


def test_recall_of_nothing_gives_way_to_what_differs():
    table = two(shift=0.05).assign(factual_recall=0.0)
    some = table.assign(factual_recall=np.linspace(0, 0.5, len(table)))

    assert equal_cost(table, reference="dense").outcome == "loss"
    assert equal_cost(some, reference="dense").outcome == "factual_recall"


def timed(table, seconds_of):
    """Seconds of each run by its architecture, its place among the sizes and its seed."""
    place = table["training_flops"].rank(method="dense").astype(int) - 1
    runs = zip(table["architecture"], place, table["seed"], strict=True)
    taken = [float(seconds_of(*run)) for run in runs]
    return table.assign(train_seconds=taken, active_params=table["training_flops"] / 6e6)


def rising(place):
    return 2.0 * 1e2 ** (place / 5)


def at_equal_seconds(found):
    return [d for d in found.differences if d.measure.name == "seconds"]


def test_seconds_that_rise_with_size_are_held_equal():
    table = timed(two(shift=0.05), lambda name, place, seed: rising(place) * (1 + 0.02 * seed))

    (found,) = at_equal_seconds(equal_cost(table, reference="dense"))

    assert (found.n_sizes, found.verdict) == (6, "better")


def test_seconds_that_fall_with_size_compare_nothing_and_are_not_corrected_for():
    """Of a run beside other work: a neighbour in seconds was any size."""
    busy = (7.2, 13, 16, 15, 9.6, 11)
    table = timed(two(shift=0.05), lambda name, place, seed: busy[place] if name == "dense" else 10)

    found = equal_cost(table, reference="dense")

    assert at_equal_seconds(found) == []
    assert found.n_corrected == 1
    assert found.unmatched == [
        "at equal measured training seconds nothing is compared: what dense takes does not rise"
        " with its training FLOPs (16 s, then 9.6 s with more)"
    ]


def test_seconds_that_no_size_changes_compare_nothing():
    found = equal_cost(two(shift=0.05).assign(train_seconds=12.5), reference="dense")

    assert at_equal_seconds(found) == []
    assert "does not rise with its training FLOPs (12.5 s at every size)" in found.unmatched[0]


@pytest.mark.parametrize("slow", ["dense", "memory"])
def test_seconds_of_an_architecture_that_are_no_function_of_size_compare_nothing(slow):
    """Their means rise, but one seed took three times as long."""

    def seconds_of(name, place, seed):
        return rising(place) * (3 if name == slow and seed == 2 else 1)

    found = equal_cost(timed(two(shift=0.05), seconds_of), reference="dense")

    assert at_equal_seconds(found) == []
    who = "nothing is compared" if slow == "dense" else "memory is not compared"
    (why,) = found.unmatched
    assert why.startswith(f"at equal measured training seconds {who}: what sizes of {slow} take is")
    assert "no smooth function of size in these runs (off by 63% at most)" in why


COUNTED = {
    "training_flops": ("flops", "training_flops"),
    "active_params": ("active_params", "active_params"),
    "total_params": ("total_params", "total_params"),
    "bytes_per_token": ("bytes_moved", "bytes_read_per_token"),
}
"""Keys of `match` to the cost measure and the column of what they hold equal."""


def matched(match, *, equal=None, sizes=("d8", "d16"), by_dense=False):
    """Memory that lies 0.05 below dense of the same preset, one of them made equal to the other.

    Dense has a second model on each preset: wider, 0.5 better and slower. It has a match of its
    own, to a number of FLOPs, and all else is as dear.

    Args:
        match: Without what it is made equal to: `{step_time: None, solve: d_ff}`.
        equal: Column that is equal; every other cost is half as large.
        sizes: Presets.
        by_dense: Whether dense was made equal to memory, in place of memory to dense.
    """
    generator = np.random.default_rng(0)
    columns = ("training_flops", "active_params", "total_params", "bytes_read_per_token")
    who, target = ("dense", "memory") if by_dense else ("memory", "dense")
    rows = []
    for i, preset in enumerate(sizes):
        for name, d_ff, below in (("dense", 8, 0.0), ("memory", 8, 0.05), ("dense", 99, 0.5)):
            share = {c: 1.0 if name == "dense" or c == equal else 0.5 for c in columns}
            row = {"architecture": name, "preset": preset, "training_tokens": 1e6}
            row |= {c: share[c] * 1e9 * 10**i for c in columns}
            row |= {"model.d_ff": d_ff, "model.d_model": 4 * 2**i, "train_seconds": 1.0 + i}
            if d_ff == 99:
                row |= {"match.training_flops": "2e9", "match.solve": "tokens"}
                row["train_seconds"] *= 1.3
            if name == who and d_ff == 8:
                held = {key: target if value is None else value for key, value in match.items()}
                row |= {f"match.{key}": value for key, value in held.items()}
            for seed in range(3):
                loss = 3 - 0.3 * i - below + 0.001 * generator.standard_normal()
                rows.append({**row, "seed": seed, "loss": loss})
    table = pd.DataFrame(rows)
    key = table[["architecture", "preset", "model.d_ff"]].astype(str)
    return table.assign(configuration=key.agg(" ".join, axis=1))


@pytest.mark.parametrize("by_dense", [False, True])
@pytest.mark.parametrize(
    ("solve", "name", "label"),
    [("d_ff", "step_time", "step time"), ("tokens", "training_time", "training time")],
)
def test_step_times_that_were_matched_are_held_equal(solve, name, label, by_dense):
    table = matched({"step_time": None, "solve": solve}, by_dense=by_dense)
    if solve == "tokens":
        others = table["match.step_time"].isna()
        table["training_tokens"] = np.where(others, 1e6, 1.7e6)

    found = equal_cost(table, reference="dense")

    first = found.differences[0]
    assert (first.measure.name, first.n_sizes, first.n_unmatched) == (name, 2, 0)
    assert first.measure.label == f"{label} (matched within 5 %)"
    assert first.mean.value == pytest.approx(-0.05, abs=3e-3)
    assert (first.by_match, first.verdict) == (True, "better")


@pytest.mark.parametrize("by_dense", [False, True])
@pytest.mark.parametrize("key", COUNTED)
def test_what_match_held_equal_comes_first(key, by_dense):
    name, column = COUNTED[key]
    table = matched({key: None, "solve": "d_ff"}, equal=column, by_dense=by_dense)
    table = table[table["model.d_ff"] == 8]

    found = equal_cost(table, reference="dense")

    first = found.differences[0]
    assert (first.measure.name, first.n_sizes, first.by_match) == (name, 2, True)
    assert first.mean.value == pytest.approx(-0.05, abs=3e-3)
    assert "base" not in {d.measure.name for d in found.differences}, "d_ff is not the preset's"


def test_a_counterpart_that_the_sweep_file_writes_is_that_one():
    """Of any preset, and told from others of its architecture by the fields that are written."""
    table = matched({"step_time": None, "solve": "tokens"})
    of_memory = table["architecture"] == "memory"
    table["match.step_time"] = table["match.step_time"].where(~of_memory, "dense d8; d_ff 8")
    table.loc[table["model.d_ff"] == 99, ["match.training_flops", "match.solve"]] = None

    first = equal_cost(table, reference="dense").differences[0]

    assert (first.measure.name, first.n_sizes, first.n_unmatched) == ("training_time", 2, 0)
    # Both memories are beside the small dense: the larger one lies 0.3 lower.
    assert first.mean.value == pytest.approx(-0.2, abs=3e-3)


@pytest.mark.parametrize("written", ["8", "[1, 3]"])
def test_a_field_that_is_not_set_is_not_the_written_one(written):
    table = matched({"step_time": None, "solve": "tokens"}, sizes=("d8",))
    of_memory = table["architecture"] == "memory"
    table["match.step_time"] = table["match.step_time"].where(
        ~of_memory, f"dense d8; layers {written}"
    )
    other = table["model.d_ff"] == 99
    table.loc[other, ["match.training_flops", "match.solve"]] = None
    table["model.layers"] = np.where(of_memory | other, None, written)

    first = equal_cost(table, reference="dense").differences[0]

    assert (first.measure.name, first.n_sizes) == ("training_time", 1)
    assert first.mean.value == pytest.approx(-0.05, abs=3e-3)


def of_three_lengths():
    """Return a table per length of dense, and of a memory whose tokens match its seconds."""
    parts = []
    for i, (tokens, below) in enumerate([(1e6, 0.0), (2e6, 0.4), (4e6, 0.7)]):
        one = matched({"step_time": None, "solve": "tokens"}, sizes=("d8",))
        one = one[one["model.d_ff"] == 8]
        of_memory = one["architecture"] == "memory"
        one["training_tokens"] = np.where(of_memory, 0.8 * tokens, tokens)
        one["train_seconds"] = 2.0**i * np.where(of_memory, 1.05, 1.0)
        one["loss"] -= below
        parts.append(one.assign(configuration=one["configuration"] + f" {tokens:g}"))
    return parts


def test_of_several_tokens_each_has_the_counterpart_of_its_seconds():
    """`match` records what it solved for, and not what the counterpart trained for."""
    found = equal_cost(pd.concat(of_three_lengths()), reference="dense")

    first = found.differences[0]
    assert (first.measure.name, first.n_sizes) == ("training_time", 3)
    assert first.mean.value == pytest.approx(-0.05, abs=3e-3)
    assert first.largest.value == pytest.approx(-0.05, abs=3e-3)


def test_both_matched_to_one_number_of_seconds_are_equal():
    table = matched({"step_time": "0.05", "solve": "d_ff"})
    table = table[table["model.d_ff"] == 8].assign(
        **{"match.step_time": "0.05", "match.solve": "d_ff"}
    )

    first = equal_cost(table, reference="dense").differences[0]

    assert (first.measure.name, first.n_sizes) == ("step_time", 2)
    assert first.mean.value == pytest.approx(-0.05, abs=3e-3)


def test_a_counterpart_that_is_not_there_is_said():
    table = matched({"step_time": None, "solve": "d_ff"})
    table = table[table["model.d_ff"] == 8]
    of_memory = table["architecture"] == "memory"
    small = table[~of_memory & (table["preset"] == "d8")]
    large = table[of_memory & (table["preset"] == "d16")]

    found = equal_cost(pd.concat([small, large]), reference="dense")

    assert list(found.differences) == []
    assert (
        "at equal step time (matched within 5 %) nothing is compared with memory: the dense runs"
        " that match names are not trained yet, or excluded"
    ) in found.unmatched
    assert not any("or use match" in sentence for sentence in found.unmatched)
    assert found.unmatched[0].endswith("add sizes on both sides of that cost (match held step_time equal)")  # fmt: skip


def test_a_match_of_step_times_comes_before_flops_of_neighbours():
    """Interpolation finds equal FLOPs for more architectures, but nobody asked for them."""
    table = matched(
        {"step_time": None, "solve": "d_ff"}, sizes=("d8", "d12", "d16", "d20"), by_dense=True
    )
    table = table[table["model.d_ff"] == 8]
    other = table[table["architecture"] == "memory"].assign(architecture="other")
    other["configuration"] = "other " + other["configuration"]

    found = equal_cost(pd.concat([table, other.assign(training_tokens=1e6)]), reference="dense")

    names = [d.measure.name for d in found.differences]
    assert names.index("step_time") == 0
    assert names.count("flops") == 2
    assert [d.candidate for d in found.differences if d.measure.name == "step_time"] == ["memory"]


def test_a_trial_without_its_counterpart_gets_none_of_another_length():
    parts = of_three_lengths()
    parts[1] = parts[1][parts[1]["architecture"] == "memory"]

    first = equal_cost(pd.concat(parts), reference="dense").differences[0]

    assert (first.measure.name, first.n_sizes, first.n_unmatched) == ("training_time", 2, 1)
    assert first.mean.value == pytest.approx(-0.05, abs=3e-3)


def test_step_times_are_compared_where_flops_are_not_known():
    table = matched({"step_time": None, "solve": "d_ff"})
    table["training_flops"] = table["training_flops"].astype(float)
    table.loc[table.index[0], "training_flops"] = np.nan

    measures = {d.measure.name for d in equal_cost(table, reference="dense").differences}

    assert "step_time" in measures
    assert "flops" not in measures

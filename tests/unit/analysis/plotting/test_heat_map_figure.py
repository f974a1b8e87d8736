import itertools

import numpy as np
import pandas as pd
import pytest

from analysis.plotting.heat_map_figure import MOST_PANELS, heat_map_figure, heat_maps


def swept(
    *, lrs=(1e-3, 3e-3, 1e-2), keys=(32, 64), sizes=("d8", "d16"), seeds=(0, 1), decays=(0.0,)
):
    """Losses that are least at lr 3e-3 and at the most keys, in every size."""
    rows = []
    settings = itertools.product(sizes, lrs, keys, decays, seeds)
    for size, lr, n_keys, decay, seed in settings:
        loss = 3 + abs(np.log(lr / 3e-3)) - 0.01 * n_keys + 0.001 * seed + decay
        rows.append(
            {
                "architecture": "memory",
                "preset": size,
                "total_params": 1000.0 + int(size[1:]),
                "train.lr": lr,
                "model.n_keys": n_keys,
                "train.decay": decay,
                "loss": loss,
                "configuration": f"{size} {lr} {n_keys} {decay}",
                "seed": seed,
            }
        )
    return pd.DataFrame(rows)


NAMES = ("train.lr", "model.n_keys")


def test_every_pair_is_the_mean_over_seeds_in_its_cell():
    small, large = heat_maps(swept(), NAMES, "loss")

    assert (small.title, large.title) == ("memory d8", "memory d16")
    assert (small.x, small.columns) == ("train.lr", [1e-3, 3e-3, 1e-2])
    assert (small.y, small.rows) == ("model.n_keys", [32, 64])
    expected = 3 + np.abs(np.log(np.asarray(small.columns) / 3e-3)) - 0.01 * 64 + 0.0005
    assert small.values[1] == pytest.approx(expected)


def test_of_further_settings_the_best_counts_and_pairs_not_run_stay_empty():
    table = swept(decays=(0.0, 0.5))
    table = table[~((table["train.lr"] == 1e-2) & (table["model.n_keys"] == 64))]

    one, _ = heat_maps(table, (*NAMES, "train.decay"), "loss")

    assert one.values[0] == pytest.approx(heat_maps(swept(), NAMES, "loss")[0].values[0])
    assert np.isnan(one.values[1, 2])


def test_the_best_of_each_panel_is_framed():
    figure = heat_map_figure(heat_maps(swept(), NAMES, "loss"), "loss")

    for axis in figure.axes[:2]:
        (frame,) = axis.patches
        assert (frame.get_x() + 0.5, frame.get_y() + 0.5) == (1, 1), "lr 3e-3 and 64 keys"
        assert [t.get_text() for t in axis.get_xticklabels()] == ["1e-3", "3e-3", "1e-2"]


def test_one_setting_alone_is_no_map_and_many_sizes_are_the_largest():
    assert heat_maps(swept(keys=(32,)), NAMES, "loss") == []
    assert heat_maps(swept(), ("train.lr",), "loss") == []
    with pytest.raises(ValueError, match="no two settings"):
        heat_map_figure([], "loss")
    many = heat_maps(swept(sizes=[f"d{i}" for i in range(10, 22)]), NAMES, "loss")
    figure = heat_map_figure(many, "loss")

    titles = [axis.get_title(loc="left") for axis in figure.axes]
    shown = [title for title in titles if title]
    assert len(shown) == MOST_PANELS
    assert shown[-1] == "memory d21"
    assert "the 8 largest of 12 sizes" in figure.get_supxlabel()

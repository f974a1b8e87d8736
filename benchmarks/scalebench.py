"""How well the law that is chosen on training runs alone predicts the held-out largest ones.

    python benchmarks/scalebench.py FOLDER

FOLDER holds four tasks of ScaleBench (arXiv 2604.22753, CC BY 4.0) as `scalebench_farseer.csv`,
`scalebench_data_constrained.csv`, `scalebench_moe.csv` and `scalebench_vocab.csv`, with a column
`split`. Printed are the R2 of the test runs, and how many lie in the 95 % intervals of a new run.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.fitting.model_selection import choose_law

TASKS = {
    "farseer": {"N": "params", "D": "tokens"},
    "data_constrained": {},
    "moe": {
        "num_experts": "experts",
        "dense_parameter_count": "params",
        "loss_validation": "loss",
    },
    "vocab": {
        "non_vocab_parameters": "params",
        "vocab_size": "vocabulary",
        "num_characters": "characters",
        "unigram_normalized_loss": "loss",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=300)
    arguments = parser.parse_args()
    for task, names in TASKS.items():
        runs = pd.read_csv(arguments.folder / f"scalebench_{task}.csv").rename(columns=names)
        train = runs[runs["split"] == "train"].drop(columns=["split", "group"])
        test = runs[runs["split"] == "test"]
        choice = choose_law(train.reset_index(drop=True), n_draws=arguments.draws)
        at, observed = choice.predict(test), test["loss"].to_numpy()
        squares = np.sum((at.y - observed) ** 2) / np.sum((observed - observed.mean()) ** 2)
        inside = np.mean((at.new_low <= observed) & (observed <= at.new_high))
        verdict = choice.fit.verdict.status
        print(f"{task}: R2 {1 - squares:.3f}, {inside:.0%} inside, {verdict}; {choice.sentence}")


if __name__ == "__main__":
    main()

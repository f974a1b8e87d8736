"""Costs of suites, against the requests that the harness makes of them."""

from typing import ClassVar

import pytest

from workloads.evaluation import evaluate_suites
from workloads.evaluation.prepared_suite import BYTES_PER_TOKEN, PreparedSuite
from workloads.evaluation.suite import Suite, TaskSpec

ROWS = {
    "choices": [
        {"question": "What flows?", "choices": ["a stone", "the river"], "label": 1},
        {"question": "What stands?", "choices": ["the hill", "a stream", "it"], "label": 0},
    ],
    "contexts": [{"contexts": ["Ann, as Ann", "Ann, as Bo"], "continuation": "won.", "label": 1}],
    "answer": [{"question": "who won", "answers": ["The Poles", "Poland"]}] * 3,
    "continuation": [{"question": "It was the last", "continuation": "word"}],
}


class Asked:
    """Counts what it is asked."""

    rank, world_size = 0, 1

    def __init__(self):
        from lm_eval.api.model import LM

        self.n_bytes = self.n_generated = 0
        counts = self

        class Model(LM):
            cut_prompts: ClassVar[set] = set()

            def loglikelihood(self, requests):
                counts.n_bytes += sum(len("".join(r.args).encode()) for r in requests)
                return [(-1.0, False)] * len(requests)

            def loglikelihood_rolling(self, requests):
                raise AssertionError

            def generate_until(self, requests):
                counts.n_bytes += sum(len(r.args[0].encode()) for r in requests)
                counts.n_generated += sum(r.args[1]["max_gen_toks"] for r in requests)
                return [""] * len(requests)

        self.model = Model()


@pytest.mark.parametrize(
    ("kind", "shots"), [*((kind, 0) for kind in ROWS), ("choices", 2), ("answer", 2)]
)
def test_tokens_are_those_of_the_harnesss_requests(kind, shots):
    pytest.importorskip("lm_eval")
    prompt = "" if kind == "contexts" else "Q: {{question}}\nA:"
    more = {"shots": shots, "shots_file": "b"} if shots else {}
    task = TaskSpec(name="t", kind=kind, file="a", origin="here", prompt=prompt, **more)
    suite = Suite(name="s", about="", tasks=(task,))
    prepared = PreparedSuite(suite=suite, rows={"t": (ROWS[kind], ROWS[kind][:1] * shots)})
    asked = Asked()
    list(evaluate_suites.evaluate_suite(prepared, asked.model))

    found = prepared.tokens(seq_len=10**6, n_rows=10)

    # Spaces between the parts of a prompt are not counted.
    assert found.read * BYTES_PER_TOKEN == pytest.approx(asked.n_bytes, rel=0.1)
    assert found.generated == asked.n_generated
    assert found.decoding_passes == (1 + 24 if kind == "answer" else 0)
    assert prepared.tokens(seq_len=2, n_rows=10).read <= found.read
    first = PreparedSuite(suite=suite, rows={"t": (ROWS[kind][:1], ROWS[kind][:1] * shots)})
    assert first.tokens(seq_len=99, n_rows=9) == prepared.tokens(seq_len=99, n_rows=1)

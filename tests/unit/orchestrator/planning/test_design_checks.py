"""Design checks: sweeps that cannot be fitted are named, sweeps that can be are left in peace."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from analysis.fitting import lack_of_fit
from orchestrator.planning import design_checks
from orchestrator.records.trial_spec import TrialSpec

Arms = dict[str, Sequence[int]]


def specs(
    arms: Arms, *, lrs: dict[str, Sequence[float]] | None = None, seeds: int = 3
) -> list[TrialSpec]:
    """Return trials: sizes of each architecture, with learning rates and seeds."""
    return [
        TrialSpec(
            sweep="test",
            data={"source": "numbers"},
            model={"architecture": name, "d_model": size},
            train={"lr": lr},
            seed=seed,
            preset=f"d{size}",
            accounting={"total_params": 12.0 * size**2},
        )
        for name, sizes in arms.items()
        for size, lr, seed in itertools.product(sizes, (lrs or {}).get(name, [1e-2]), range(seeds))
    ]


SEVEN = (8, 12, 16, 20, 24, 28, 32)


@pytest.mark.parametrize(
    "arms",
    [
        pytest.param({"dense": SEVEN, "memory": SEVEN}, id="seven sizes"),
        pytest.param({"dense": SEVEN[:6]}, id="six"),
        pytest.param({"dense": (16,), "memory": (16,)}, id="no curve against size"),
        pytest.param({}, id="nothing"),
    ],
)
def test_a_sweep_that_can_be_fitted_gets_no_note(arms: Arms) -> None:
    assert design_checks.notes(specs(arms)) == ()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_fewer_sizes_than_a_verdict_takes_are_said(n: int) -> None:
    (note,) = design_checks.notes(specs({"dense": SEVEN[:n], "memory": SEVEN[:n]}))

    assert note == (
        f"dense and memory: {n} sizes, too few to tell whether a curve fits; that takes 7, or 6 "
        "for one without a floor"
    )


def test_a_verdict_takes_as_many_sizes_as_a_fit_asks_for() -> None:
    assert design_checks.SPARE_SIZES == lack_of_fit.FEWEST_SPARE


def test_values_at_the_rate_of_the_rest_are_said_unless_they_are_meant() -> None:
    def of(ratios: Sequence[float], name: str = "memory_plus", recipe: str | None = None):
        return [
            replace(spec, train={**spec.train, "value_lr_ratio": ratio}, recipe=recipe)
            for ratio in ratios
            for spec in specs({name: SEVEN})
        ]

    (note,) = design_checks.notes(of([1.0]))

    assert note == (
        "memory_plus: train.value_lr_ratio is 1, their papers have 3.3 to 10; "
        "write value_lr_ratio: 4.0, or a recipe"
    )
    for meant in (of([1.0, 4.0]), of([1.0], "memoryformer"), of([1.0], recipe="peer"), of([4.0])):
        assert design_checks.notes(meant) == ()


def test_performers_running_maximum_beside_an_eps_is_said() -> None:
    def of(stabiliser: str | None, eps: float) -> list[TrialSpec]:
        fields = {"key_stabiliser": stabiliser, "feature_eps": eps}
        return [
            replace(spec, model={**spec.model, **fields}) for spec in specs({"performer": SEVEN})
        ]

    (note,) = design_checks.notes([*of("running_max", 1e-6), *of("running_max", 0.0)])

    assert note == (
        "performer: key_stabiliser: running_max with model.feature_eps above 0 can be further from "
        "the exact kernel than no key_stabiliser; write feature_eps: 0"
    )
    for meant in (of("running_max", 0.0), of(None, 1e-6)):
        assert design_checks.notes(meant) == ()


def test_each_number_of_sizes_is_one_line() -> None:
    found = design_checks.notes(specs({"a": SEVEN, "b": SEVEN[:1], "c": SEVEN[:2], "d": SEVEN[:2]}))

    assert [note.partition(", too")[0] for note in found] == ["b: 1 size", "c and d: 2 sizes"]


def test_learning_rates_of_one_architecture_alone_are_told() -> None:
    arms = {"dense": SEVEN, "memory": SEVEN}
    (note,) = design_checks.notes(specs(arms, lrs={"dense": (1e-3, 1e-2, 1e-1)}))

    assert note.startswith("train.lr has 3 values at a size for dense and 1 for memory: ")
    both = dict.fromkeys(arms, (1e-3, 1e-2))
    assert design_checks.notes(specs(arms, lrs=both)) == ()


def test_a_learning_rate_per_size_is_no_tuning() -> None:
    own = [
        spec
        for lr, size in enumerate(SEVEN, start=1)
        for spec in specs({"dense": (size,)}, lrs={"dense": (lr / 100,)})
    ]

    assert design_checks.notes([*own, *specs({"memory": SEVEN})]) == ()


def on_tokens(
    name: str, *tokens: int, flops: float = 6.0, sizes: Sequence[int] = SEVEN
) -> list[TrialSpec]:
    """Return trials on these tokens, with so many FLOPs per token and total parameter."""
    return [
        replace(
            spec,
            train={**spec.train, "tokens": n},
            accounting={
                **spec.accounting,
                "non_embedding_params": spec.accounting["total_params"],
                "training_flops": flops * n * spec.accounting["total_params"],
            },
        )
        for spec in specs({name: sizes})
        for n in tokens
    ]


def test_more_tokens_for_one_architecture_are_told() -> None:
    (note,) = design_checks.notes(
        [
            *on_tokens("dense", 10_000),
            *on_tokens("peer", 10_000),
            *on_tokens("memory", 10_000, 20_000),
        ]
    )

    assert note == (
        "train.tokens is 10,000 for dense and peer and 10,000 and 20,000 for memory: the one that "
        "trains longer is favoured; write the same for both, or match training_flops"
    )


def of_lengths(*lengths: tuple[int, int | None]) -> list[TrialSpec]:
    return [
        replace(spec, train={**spec.train, "batch_tokens": 1_024, "tokens": n, "stop_at_tokens": s})
        for spec in specs({"dense": (16,), "memory": (16,)})
        for n, s in lengths
    ]


def test_tokens_that_make_the_same_steps_are_told_once() -> None:
    (note,) = design_checks.notes(of_lengths((200_000, None), (200_704, None), (400_000, None)))

    assert note == (
        "train.tokens 200,000 and 200,704 are the same 196 steps of 1,024 tokens: trials that "
        "differ in nothing else train twice; keep one of these"
    )


def test_steps_of_other_schedules_or_of_other_settings_are_not_the_same() -> None:
    assert design_checks.notes(of_lengths((4_096, 2_000), (8_192, 2_000))) == ()
    mixed = [spec for one in (4_096, 4_000) for spec in of_lengths((one, None))]
    mixed = [replace(s, train={**s.train, "eps": 1 / s.train["tokens"]}) for s in mixed]
    assert design_checks.notes(mixed) == ()
    (note,) = design_checks.notes(of_lengths((4_096, 2_000), (4_000, 2_048)))
    assert note.startswith("train.tokens 4,000 (stop_at_tokens 2,048) and 4,096 (stop_at_tokens 2,")


def with_train(name: str, *, values: int, **settings: Sequence[object]) -> list[TrialSpec]:
    """Return trials of an architecture with so many memory values, over a grid of settings."""
    return [
        replace(
            spec,
            train={**spec.train, **dict(zip(settings, chosen, strict=True))},
            accounting={**spec.accounting, "params_memory_values": values},
        )
        for spec in specs({name: SEVEN})
        for chosen in itertools.product(*settings.values())
    ]


def test_settings_that_a_model_ignores_train_nothing_twice() -> None:
    swept = {"value_lr_ratio": [1.0, 4.0], "schedule": ["wsd"], "decay_fraction": [0.1, 0.2]}
    memory, dense, moe = (
        with_train(name, values=values, **swept)
        for name, values in (("memory", 8), ("dense", 0), ("moe", 0))
    )

    assert design_checks.notes(memory) == ()
    (note,) = design_checks.notes([*memory, *dense])
    assert note == (
        "dense ignores train.value_lr_ratio, of which there are several values: the same training "
        "runs once for each; keep one"
    )
    (note,) = design_checks.notes([*memory, *dense, *moe])
    assert note.startswith("dense and moe ignore train.value_lr_ratio, of which")
    (note,) = design_checks.notes(
        with_train("memory", values=8, schedule=["cosine"], decay_fraction=[0.1, 0.2])
    )
    assert note.startswith("memory ignores train.decay_fraction, of which")
    together = with_train("dense", values=0, lr=[1e-2, 2e-2], value_lr_ratio=[1.0])
    assert design_checks.notes(together) == ()
    tied = [replace(s, train={**s.train, "value_lr_ratio": 1 / s.train["lr"]}) for s in together]
    assert design_checks.notes(tied) == ()


def test_where_a_run_is_to_stop_counts_as_its_tokens() -> None:
    stopped = [
        replace(spec, train={**spec.train, "tokens": 10_000, "stop_at_tokens": 5000})
        for spec in on_tokens("memory", 5000)
    ]

    assert design_checks.notes([*on_tokens("dense", 5000), *stopped]) == ()
    (note,) = design_checks.notes([*on_tokens("dense", 10_000), *stopped])
    assert note.startswith("train.tokens is 5,000 for memory and 10,000 for dense: ")


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param(on_tokens("memory", 10_000, 20_000), id="tokens swept"),
        pytest.param(on_tokens("memory", 10_000, 20_400), id="whole steps of another batch"),
        pytest.param(on_tokens("memory", 12_500, 25_000, flops=4.8), id="equal FLOPs"),
    ],
)
def test_equal_tokens_and_equal_budgets_are_left_in_peace(memory: list[TrialSpec]) -> None:
    assert design_checks.notes([*on_tokens("dense", 10_000, 20_000), *memory]) == ()


def test_equal_tokens_a_parameter_are_left_in_peace() -> None:
    def ladder(name: str, larger: int, flops: float) -> list[TrialSpec]:
        return [
            spec
            for size in SEVEN
            for spec in on_tokens(
                name, 20 * 12 * (size + larger) ** 2, flops=flops, sizes=(size + larger,)
            )
        ]

    assert design_checks.notes([*ladder("dense", 0, 6.0), *ladder("memory", 4, 9.0)]) == ()


def test_tokens_that_match_chose_are_left_in_peace() -> None:
    chosen = on_tokens("memory", 14_000)
    trials = [*on_tokens("dense", 10_000), *chosen]

    assert len(design_checks.notes(trials)) == 1
    assert design_checks.notes(trials, tokens_matched={one.trial_id for one in chosen}) == ()


def test_one_seed_is_told_once() -> None:
    (note,) = design_checks.notes(specs({"dense": SEVEN, "memory": SEVEN}, seeds=1))

    assert note.startswith("one seed: ")
    two_of_one = [*specs({"dense": SEVEN}, seeds=1), *specs({"dense": SEVEN[:1]}, seeds=2)[1:]]
    assert design_checks.notes(two_of_one) == ()


def test_many_architectures_make_a_short_line() -> None:
    (note,) = design_checks.notes(specs(dict.fromkeys("abcdef", (8, 12))))

    assert note.startswith("a, b, c and 3 more: 2 sizes")


def test_a_learning_rate_above_one_is_said() -> None:
    given = specs({"dense": SEVEN}, lrs={"dense": [1e-2, 1.0]})
    assert design_checks.notes(given) == ()

    (note,) = design_checks.notes(specs({"dense": SEVEN}, lrs={"dense": [1e-2, 1e4]}))

    assert note == "train.lr is 10000: above 1 training diverges; write for example 1.0e-2"


def test_a_counterpart_that_nobody_trains_is_said() -> None:
    trials = specs({"dense": SEVEN, "memory": SEVEN})
    of_memory = [spec.trial_id for spec in trials if spec.architecture == "memory"]

    assert design_checks.notes(trials, counterparts=dict.fromkeys(of_memory, "dense")) == ()
    (note,) = design_checks.notes(trials, counterparts=dict.fromkeys(of_memory, "pythia"))

    assert note == (
        "match makes memory equal to pythia, of which the sweep has no trial to compare with; "
        "add trials of pythia, or compare with another sweep's"
    )

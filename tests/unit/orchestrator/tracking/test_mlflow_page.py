"""Columns, charts and colours of the MLflow page."""

from orchestrator.records.trial_spec import TrialState
from orchestrator.tracking import mlflow_page, run_schema
from orchestrator.tracking.trial_view import TrialView


def test_columns_and_charts_name_params_and_tags_that_runs_have(disk):
    spec = disk.make_spec()
    view = TrialView(state=TrialState.DONE, attempt=1, outcome="done", reason="", ended_at_s=1.0)
    tags = run_schema.trial_tags(
        spec, view, submission=1, parent="p", environment={}, colour="#000000"
    )
    have = {"params": set(run_schema.trial_params(spec)), "tags": set(tags)}

    assert {name for kind, name, _ in mlflow_page.COLUMNS if kind != "metrics"} <= have[
        "params"
    ] | have["tags"]
    for kind, name, _ in mlflow_page.COLUMNS:
        if kind != "metrics":
            assert name in have[kind]


def test_views_fit_into_a_tag_and_charts_into_their_sections():
    tags = mlflow_page.experiment_tags("Why?")
    # MLflow's limit for the value of an experiment's tag.
    assert all(len(value) <= 20_000 for value in tags.values())

    view = mlflow_page.charts_view()
    sections = {section["uuid"] for section in view["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} <= sections
    uuids = [chart["uuid"] for chart in view["compareRunCharts"]]
    assert len(set(uuids)) == len(uuids)


def test_use_of_memories_and_experts_has_a_section_of_means_over_layers():
    view = mlflow_page.charts_view()

    section = next(s for s in view["compareRunSections"] if s["name"] == mlflow_page.USE)
    charts = [c for c in view["compareRunCharts"] if c["metricSectionId"] == section["uuid"]]
    assert {"memory/usage_ever", "memory/kl", "moe/kl", "moe/max_over_mean"} <= {
        chart["metricKey"] for chart in charts
    }
    assert not any("layer" in chart["metricKey"] for chart in charts)
    assert view["hideEmptyCharts"], "a sweep without experts shows no empty charts of them"


def test_the_question_is_the_description():
    assert mlflow_page.experiment_tags("Why?")["mlflow.note.content"] == "Why?"
    assert "mlflow.note.content" not in mlflow_page.experiment_tags(None)


def test_architectures_differ_in_colour():
    colours = mlflow_page.colours(["dense", "memory_plus", "dense", "moe"])

    assert list(colours) == ["dense", "memory_plus", "moe"]
    assert len(set(colours.values())) == 3
    assert len(set(mlflow_page.colours(map(str, range(15))).values())) == 15


# Addresses: what is private stays private, what is local stays absolute.


def test_trials_stand_beside_submissions_in_the_table():
    """MLflow folds nested runs while the order is by time, which is its default."""
    view = mlflow_page.table_view()

    kind, name = view["orderByKey"].split(".", 1)
    assert kind == "params"
    assert name.strip("`") in {name for kind, name, _ in mlflow_page.COLUMNS if kind == "params"}
    assert "orderByKey" not in mlflow_page.charts_view()

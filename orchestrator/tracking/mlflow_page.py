"""Views of the MLflow page: columns, charts, colours, description.

MLflow keeps a shared view as a tag of the experiment, and opens it for whoever follows the link.
The exporter writes two such views, so a link shows the columns and charts that matter instead of
the first ten metrics by name. The form of the tag is that of MLflow 3.13 to 3.17; a version that
does not know it shows its own defaults and says so.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

TABLE_VIEW = "memscale-table"
CHARTS_VIEW = "memscale-charts"
VIEW_TAG = "mlflow.sharedViewState."
RECALL = "recall/train_wording/exact_match"
ANSWER_NLL = "recall/train_wording/answer_nll"

COLUMNS: tuple[tuple[str, str, int | None], ...] = (
    ("params", "architecture", 130),
    ("params", "preset", 80),
    ("params", "seed", 70),
    ("tags", "memscale.state", 130),
    ("metrics", "total_params", None),
    ("metrics", "training_flops", None),
    ("metrics", RECALL, 150),
    ("metrics", ANSWER_NLL, 150),
    ("metrics", "knowledge/bits_per_param", 150),
    ("metrics", "valid/loss", None),
    ("metrics", "time/train_s", None),
    ("metrics", "trials/done", None),
    ("metrics", "trials/failed", None),
    ("tags", "memscale.reason", 300),
)
"""Of the table, in this order: kind, name, and pixels where the page's own 100 would cut it. The
last metrics belong to the parent run."""

NAME_COLUMN = "attributes.`Run Name`"

ACCURACY, CURVES, USE = "Accuracy against size", "Curves", "Use of memories and experts"
SCATTERS = (
    ("total_params", RECALL),
    ("total_params", ANSWER_NLL),
    ("training_flops", "valid/loss"),
)
LINES = ("train/loss", "valid/loss", RECALL, ANSWER_NLL)
USE_LINES = (
    "memory/usage_ever",
    "memory/kl",
    "memory/effective_rows",
    "memory/max_over_mean",
    "memory/output_ratio",
    "moe/usage",
    "moe/kl",
    "moe/router_entropy",
    "moe/max_over_mean",
    "moe/dropped_share",
)
"""Means over layers. The page hides the charts of what no trial reported."""

COLOURS = (
    *("#2463eb", "#d9480f", "#2b8a3e", "#862e9c", "#0b7285", "#c2255c", "#5c940d", "#495057"),
    *("#f59f00", "#e599f7", "#74c0fc", "#000000", "#7f5539", "#ff8787", "#5f3dc4", "#63e6be"),
)
"""One per architecture, the first eight far enough apart on white and in print."""


def experiment_tags(question: str | None) -> dict[str, str]:
    """Return the tags of a sweep's experiment."""
    tags = {
        # The page of training runs, not that of prompts and traces.
        "mlflow.experimentKind": "custom_model_development",
        f"{VIEW_TAG}{TABLE_VIEW}": json.dumps(table_view(), sort_keys=True),
        f"{VIEW_TAG}{CHARTS_VIEW}": json.dumps(charts_view(), sort_keys=True),
    }
    return {**tags, "mlflow.note.content": question} if question else tags


def link(url: str, experiment_id: str, view: str) -> str:
    """Return the address of a sweep's runs in one of the views."""
    mode = "&compareRunsMode=CHART" if view == CHARTS_VIEW else ""
    query = f"workflowType=machine_learning&viewStateShareKey={view}{mode}"
    return f"{url}/#/experiments/{experiment_id}/runs?{query}"


def table_view() -> dict[str, Any]:
    """Return the state of the table: trials by architecture, the newest first, then the parent run.

    Sorted by time, which is the page's default, trials would be folded below it.
    """
    return {**_columns(), "orderByKey": "params.`architecture`", "orderByAsc": True}


def _columns() -> dict[str, Any]:
    widths = {f"{kind}.`{name}`": width for kind, name, width in COLUMNS}
    columns = list(widths)
    return {
        "selectedColumns": columns,
        "columnOrder": [NAME_COLUMN, "runDateAndNestInfo", *columns],
        "columnWidths": {
            NAME_COLUMN: 290,
            **{name: w for name, w in widths.items() if w},
        },
    }


def charts_view() -> dict[str, Any]:
    """Return the state of the charts: every trial a point, coloured by its architecture."""
    sections = [_section(ACCURACY), _section(CURVES), _section(USE)]
    # The rest, folded: the page adds charts of all metrics to the sections of their names.
    sections += [_section(name, display=False) for name in ("Model metrics", "System metrics")]
    charts = [_scatter(x, y) for x, y in SCATTERS] + [_line(metric) for metric in LINES]
    charts += [_line(metric, section=USE) for metric in USE_LINES]
    return {
        **_columns(),
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": "param", "groupByData": "architecture"}],
        },
        # Groups in the list, single trials in the charts.
        "useGroupedValuesInCharts": False,
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
    }


def colours(architectures: Iterable[str]) -> dict[str, str]:
    """Return a colour per architecture, by first appearance: growing a sweep changes none."""
    names = list(dict.fromkeys(architectures))
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def _section(name: str, *, display: bool = True) -> Mapping[str, Any]:
    return {
        "uuid": _id(name),
        "name": name,
        "display": display,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }


def _chart(kind: str, section: str, name: str) -> dict[str, Any]:
    return {
        "uuid": _id(f"{section} {name}"),
        "type": kind,
        "metricSectionId": _id(section),
        "displayName": name,
        "runsCountToCompare": 100,
        "deleted": False,
        "isGenerated": False,
    }


def _scatter(x: str, y: str) -> dict[str, Any]:
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    return {**_chart("SCATTER", ACCURACY, f"{y} against {x}"), **axes}


def _line(metric: str, *, section: str = CURVES) -> dict[str, Any]:
    return {
        **_chart("LINE", section, metric),
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _id(name: str) -> str:
    return f"memscale-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

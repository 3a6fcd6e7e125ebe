"""Records of dashboards, and their Grafana form by grafana-foundation-sdk (classic schema, version 41)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    GridPos,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24

BUILDERS: dict[str, Any] = {
    "stat": stat.Panel,
    "lines": timeseries.Panel,
    "stacked": timeseries.Panel,
    "table": table.Panel,
    "map": statetimeline.Panel,
}
SIZES = {"stat": (4, 4), "lines": (12, 8), "stacked": (12, 8), "table": (24, 9), "map": (24, 10)}
"""Width and height by kind of panel."""


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel, and the legend of its series; a table names its columns by legend."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `empty` is what it shows without data."""

    kind: str
    title: str
    description: str
    unit: str
    targets: tuple[Target, ...]
    empty: str
    join: str = ""  # label by which the rows of a table are joined
    links: tuple[tuple[str, str], ...] = ()  # (title, address) of the rows of a table
    units: tuple[tuple[str, str], ...] = ()  # (column, unit) of a table
    width: int = 0  # 0: that of its kind


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice from the values of a label, or a text."""

    name: str
    label: str
    description: str
    query: str = ""  # "": a text
    text: str = ""
    multi: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    """One dashboard."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[tuple[str, str], ...] = field(default=())  # (name, expression)


def dashboard_json(page: Page, links: tuple[tuple[str, str], ...]) -> str:
    """The JSON of a page; `links` are (title, uid) of all pages."""
    builder = (
        board.Dashboard(page.title)
        .uid(page.uid)
        .description(page.description)
        .tags(["gpu-autopilot"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(board.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in page.variables:
        builder = builder.with_variable(_variable(variable))
    for name, expr in page.annotations:
        builder = builder.annotation(
            board.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color("orange").expr(expr)
        )
    for title, uid in links:
        builder = builder.link(board.DashboardLink(title).type(DashboardLinkType.LINK).url(f"/d/{uid}").keep_time(True))
    x = y = row = 0
    for number, panel in enumerate(page.panels, 1):
        width, height = panel.width or SIZES[panel.kind][0], SIZES[panel.kind][1]
        if x + width > WIDTH:
            x, y, row = 0, y + row, 0
        builder = builder.with_panel(_panel(panel, number).grid_pos(GridPos(h=height, w=width, x=x, y=y)))
        x, row = x + width, max(row, height)
    return str(JSONEncoder(sort_keys=True, indent=2).encode(builder.build())) + "\n"


def _variable(variable: Variable) -> Any:
    if not variable.query:
        option = VariableOption(selected=True, text=variable.text, value=variable.text)
        return (
            board.TextBoxVariable(variable.name)
            .label(variable.label)
            .description(variable.description)
            .default_value(variable.text)
            .current(option)
        )
    return (
        board.QueryVariable(variable.name)
        .label(variable.label)
        .description(variable.description)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(variable.multi)
        .include_all(variable.multi)
        .all_value(".*" if variable.multi else "")
    )


def _panel(panel: Panel, number: int) -> Any:
    builder = (
        BUILDERS[panel.kind]()
        .id(number)
        .title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .no_value(panel.empty)
        .datasource(SOURCE)
    )
    for place, target in enumerate(panel.targets):
        query = (
            prometheus.Dataquery().expr(target.expr).ref_id(chr(ord("A") + place)).legend_format(target.legend)
        ).datasource(SOURCE)
        if panel.kind == "table":
            query = query.instant().format(PromQueryFormat.TABLE)
        elif panel.kind == "stat":
            query = query.instant()
        builder = builder.with_target(query)
    if panel.kind == "stacked":
        builder = builder.fill_opacity(40).stacking(_stacking())
    if panel.kind == "table":
        builder = _as_table(builder, panel)
    return builder


def _stacking() -> Any:
    from grafana_foundation_sdk.builders.common import StackingConfig
    from grafana_foundation_sdk.models.common import StackingMode

    return StackingConfig().mode(StackingMode.NORMAL)


def _as_table(builder: Any, panel: Panel) -> Any:
    """One row for each value of `join`, one column for each query, named by its legend."""
    if len(panel.targets) > 1:
        builder = builder.with_transformation(
            DataTransformerConfig(id_val="joinByField", options={"byField": panel.join, "mode": "outer"})
        )
    hidden = {"Time": True} | {f"Time {number}": True for number in range(1, len(panel.targets) + 1)}
    letters = [chr(ord("A") + place) for place in range(len(panel.targets))]
    values = [f"Value #{letter}" for letter in letters] if len(letters) > 1 else ["Value"]
    renamed = {value: target.legend for value, target in zip(values, panel.targets, strict=True)}
    if "1" in renamed.values():  # an info metric: its labels are the columns
        hidden |= {value: True for value, legend in renamed.items() if legend == "1"}
    builder = builder.with_transformation(
        DataTransformerConfig(
            id_val="organize", options={"excludeByName": hidden, "renameByName": renamed, "indexByName": {}}
        )
    )
    for name, unit in panel.units:
        builder = builder.override_by_name(name, [DynamicConfigValue(id_val="unit", value=unit)])
    if panel.links:
        links = [{"title": title, "url": address, "targetBlank": True} for title, address in panel.links]
        builder = builder.override_by_name(panel.join, [DynamicConfigValue(id_val="links", value=links)])
    return builder


def queries_of(text: str) -> list[tuple[str, str]]:
    """(where, expression) of every panel, variable and annotation of a dashboard's JSON."""
    content = json.loads(text)
    found = [
        (f"{content['title']} / {panel['title']}", target["expr"])
        for panel in content["panels"]
        for target in panel["targets"]
    ]
    found += [
        (f"{content['title']} / variable {variable['name']}", variable["query"]["query"])
        for variable in content["templating"]["list"]
        if variable["type"] == "query"
    ]
    return found + [
        (f"{content['title']} / annotation {each['name']}", each["expr"])
        for each in content["annotations"].get("list", [])
        if "expr" in each
    ]

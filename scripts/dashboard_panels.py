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
SIZES = {"stat": (4, 4), "lines": (12, 9), "stacked": (12, 9), "table": (24, 9), "map": (24, 16)}
"""Width and height by kind of panel."""
ROWS_OF_A_MAP = 25
"""Rows of a map on one page of it; a large cluster has hundreds."""
GPU_HOURS = "suffix:GPU-h"
"""A unit of Grafana: the number is followed by this text."""
GREEN, ORANGE, RED, PLAIN = "green", "orange", "red", "text"


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel, and the legend of its series; a table names its columns by legend."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """The look of values. `steps`: (from, colour), below the first one `below`; `words`: (value, text, colour)."""

    steps: tuple[tuple[float, str], ...] = ()
    below: str = PLAIN
    words: tuple[tuple[str, str, str], ...] = ()

    @property
    def thresholds(self) -> dict[str, Any]:
        """As Grafana has them."""
        steps = [{"value": None, "color": self.below}, *({"value": at, "color": colour} for at, colour in self.steps)]
        return {"mode": "absolute", "steps": steps}

    @property
    def mappings(self) -> list[dict[str, Any]]:
        """As Grafana has them."""
        options = {
            value: {"text": text, "index": place, **({"color": colour} if colour else {})}
            for place, (value, text, colour) in enumerate(self.words)
        }
        return [{"type": "value", "options": options}] if options else []


def above(*steps: tuple[float, str]) -> Look:
    """Green below the first step."""
    return Look(steps, GREEN)


def below(*steps: tuple[float, str]) -> Look:
    """Red below the first step; each step has the colour from there on."""
    return Look(steps, RED)


NEUTRAL = Look()
"""Neither good nor bad: without it Grafana shows every value from 80 on in red."""


def switch(off: str, on: str, *, on_is_bad: bool = True) -> Look:
    """0 and 1 in words."""
    good, bad = (off, on) if on_is_bad else (on, off)
    colours = {good: GREEN, bad: RED}
    return Look(words=(("0", off, colours[off]), ("1", on, colours[on])))


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `empty` is its text without data."""

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
    look: Look = NEUTRAL
    columns: tuple[tuple[str, Look], ...] = ()  # (column, look) of a table
    names: tuple[tuple[str, str], ...] = ()  # (label, title) of columns of a table


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
        .thresholds(_Raw(panel.look.thresholds))
        .mappings(panel.look.mappings)
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
    if panel.kind in {"lines", "stacked"}:
        builder = builder.legend(_legend())
        if panel.look.steps:
            builder = builder.thresholds_style(_dashed())
    if panel.kind == "map":
        builder = builder.per_page(float(ROWS_OF_A_MAP)).row_height(0.8).color_scheme(_by_threshold())
    if panel.kind == "table":
        builder = _as_table(builder, panel)
    return builder


def _stacking() -> Any:
    from grafana_foundation_sdk.builders.common import StackingConfig
    from grafana_foundation_sdk.models.common import StackingMode

    return StackingConfig().mode(StackingMode.NORMAL)


class _Raw:
    """A part of a panel known as JSON already."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def build(self) -> Any:
        """The content."""
        return self._content


def _legend() -> Any:
    from grafana_foundation_sdk.builders.common import VizLegendOptions
    from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement

    legend = VizLegendOptions().display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.BOTTOM)
    return legend.show_legend(True).calcs(["lastNotNull", "mean", "max"])


def _by_threshold() -> Any:
    from grafana_foundation_sdk.builders.dashboard import FieldColor
    from grafana_foundation_sdk.models.dashboard import FieldColorModeId

    return FieldColor().mode(FieldColorModeId.THRESHOLDS)


def _dashed() -> Any:
    from grafana_foundation_sdk.builders.common import GraphThresholdsStyleConfig
    from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode

    return GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)


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
    for name, title in panel.names:
        builder = builder.override_by_name(name, [DynamicConfigValue(id_val="displayName", value=title)])
    for name, look in panel.columns:
        found = [DynamicConfigValue(id_val="mappings", value=look.mappings)] if look.words else []
        if look.steps:
            found += [
                DynamicConfigValue(id_val="thresholds", value=look.thresholds),
                DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
            ]
        builder = builder.override_by_name(name, found)
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

"""How values are shown: units, thresholds and words of each panel, by a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autopilot.alerts.thresholds import THRESHOLDS
from autopilot.core.capabilities.actions import ACTIONS
from scripts.dashboard_more_pages import PAGES
from scripts.dashboard_panels import ROWS_OF_A_MAP, Panel
from scripts.dashboard_words import WHY
from scripts.generate_dashboards import documents
from tests.kits.dashboard_kit import LOOKS

Obj = dict[str, Any]
BOARDS = {name: json.loads(text) for name, text in documents().items() if name.endswith(".json")}
PANELS = {f"{board['title']} / {panel['title']}": panel for board in BOARDS.values() for panel in board["panels"]}
RECORDS = {f"{page.title} / {panel.title}": panel for page in PAGES for panel in page.panels}


def look_of(panel: Obj) -> str:
    """Unit, then steps as `green<60 orange<300 red`, then words as `0=off 1=on`."""
    defaults = panel["fieldConfig"]["defaults"]
    steps, words = defaults["thresholds"]["steps"], []
    for each in defaults["mappings"]:
        words += [f"{value}={shown['text']}:{shown.get('color', '')}" for value, shown in each["options"].items()]
    ends = [f"<{each['value']:g}" for each in steps[1:]] + [""]
    colours = [] if steps == [{"value": None, "color": "text"}] else [each["color"] for each in steps]
    return " ".join([defaults["unit"], *(c + end for c, end in zip(colours, ends, strict=False)), *words])


def test_every_panel_looks_as_the_table_says() -> None:
    """A panel without a row, another unit, another threshold or another word is found."""
    assert {where: look_of(panel) for where, panel in PANELS.items()} == LOOKS


@pytest.mark.parametrize("where", PANELS)
def test_a_panel_can_be_read(where: str) -> None:
    """Series have a legend of last, mean and max; nothing is red only because it is above 80; maps have pages."""
    panel = PANELS[where]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["calcs"] == ["lastNotNull", "mean", "max"]
        assert panel["options"]["legend"]["displayMode"] == "table"
    if panel["type"] == "state-timeline":
        assert panel["options"]["perPage"] == ROWS_OF_A_MAP <= panel["gridPos"]["h"] * 2
        assert "$node" in json.dumps(panel["targets"])
    if panel["type"] == "table":
        assert RECORDS[where].join


@pytest.mark.parametrize(("where", "panel"), RECORDS.items())
def test_gpu_seconds_are_shown_as_gpu_hours(where: str, panel: Panel) -> None:
    """65,886 GPU-s with the unit s read "18.3 hours"."""
    asked = [target for target in panel.targets if "gpu_seconds" in target.expr and "ratio" not in panel.unit]
    for target in asked:
        if panel.unit == "percentunit":
            continue
        assert target.expr.endswith("/ 3600"), where
        units = {panel.unit} if panel.kind != "table" else {unit for name, unit in panel.units if name == target.legend}
        assert units == {"suffix:GPU-h"}, where


def test_every_reason_has_words() -> None:
    """The label `reason` is the reason of a proposal, or its kind where it has none."""
    reasons = {case.reason or case.kind for action in ACTIONS for case in action.cases}
    assert {value for value, _, _ in WHY} == reasons
    assert len({value for value, _, _ in WHY}) == len(WHY)


def test_a_reason_is_shown_in_words() -> None:
    """In a column `why`."""
    panel = PANELS["Autopilot / Recommended actions"]
    found = {
        each["id"]: each["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == "reason"
        for each in override["properties"]
    }
    assert found["displayName"] == "why"
    assert found["mappings"][0]["options"]["priority"]["text"] == "preempts work of lower priority"


def test_thresholds_are_those_of_the_alerts() -> None:
    """A panel turns where its alert fires."""
    assert f"red<{THRESHOLDS['tick_age_seconds']:g}" not in LOOKS["Autopilot / Last tick"]
    assert f"orange<{THRESHOLDS['tick_age_seconds']:g} red" in LOOKS["Autopilot / Last tick"]
    assert f"green<{THRESHOLDS['starving_seconds']:g} orange" in LOOKS["GPU queue / Oldest"]


def test_no_page_has_a_price_of_its_own() -> None:
    """The price file of the service is the only one."""
    assert not [name for name, board in BOARDS.items() if "currencyUSD" in json.dumps(board)]
    assert "gpu_autopilot_gpu_hour_price" in json.dumps(PANELS["GPU fleet / Gap a day"])
    assert not [v for board in BOARDS.values() for v in board["templating"]["list"] if "price" in v["name"]]

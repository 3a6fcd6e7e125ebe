"""What the views of the page read: numbers of a known world, unknown as null, strange names as they are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.records import Observation
from autopilot.http.history import KEPT, History
from autopilot.http.routers.page import FILES
from autopilot.service.settings import Role
from autopilot.settings import shipped_policy
from tests.kits.core_world import holds, observe, snapshot, waits, world
from tests.kits.http_kit import client, desk_over, published
from tests.unit.metrics.test_metrics_exposition import a_world

STRANGE = "<img src=x onerror=alert(1)>\"'\n`{{x}}$(y)"
VIEWS = (
    "summary",
    "state",
    "fleet",
    "history",
    "tenants",
    "queue",
    "workloads",
    "nodes",
    "forecasts",
    "recommendations",
    "decisions",
    "promises",
)


def read(folder: Path, observation: Observation, path: str) -> dict[str, Any]:
    """One document after one tick on `observation`."""
    answer = client(desk_over(folder, published(observation)), Role.VIEWER).get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_the_fleet_shows_both_utilizations_and_the_gap(tmp_path: Path) -> None:
    """12 of 16 GPUs are allocated and 4 really active, in GPUs and as ratios; so is the pool."""
    found = read(tmp_path, a_world(), "fleet")
    expected = {"capacity_gpus": 16, "held_gpus": 12, "active_gpus": 4, "gap_gpus": 8, "real_utilization_ratio": 0.25}
    assert {name: found["fleet"][name] for name in expected} == expected
    assert {name: found["pools"][0][name] for name in expected} == expected
    assert found["workloads"] == {"running": 2, "pending": 1}


def test_tenants_show_what_they_hold_leave_idle_and_wait_for(tmp_path: Path) -> None:
    """One row for each that holds or waits; the queue has its guarantee."""
    found = read(tmp_path, a_world(), "tenants")
    rows = {row["name"]: row for row in found["tenants"]}
    assert (rows["t0"]["held_gpus"], rows["t0"]["idle_gpus"], rows["t1"]["idle_gpus"]) == (8, 0, 4)
    assert (rows["t2"]["pending_gpus"], rows["t2"]["oldest_pending_s"], rows["t2"]["idle_gpus"]) == (16, 700, None)
    assert {row["name"]: row["guaranteed_gpus"] for row in found["queues"]}["q0"] == 4


def test_the_queue_says_why_each_workload_waits(tmp_path: Path) -> None:
    """A refused one has its reason in words, a proposed one its proposal; a filter finds by reason."""
    observation = world("1x4", [waits("wide", 64), waits("fits", 2)])
    found = read(tmp_path, observation, "queue")
    rows = {row["id"]: row for row in found["workloads"]}
    assert rows["wide"]["code"] == "capacity"
    assert "it needs 64" in rows["wide"]["words"]
    assert rows["fits"]["proposal"]
    assert sum(each["workloads"] for each in found["reasons"]) == found["in_total"] == 2
    only = read(tmp_path, observation, "queue?find=NEEDS 64")
    assert [row["id"] for row in only["workloads"]] == ["wide"]
    assert (only["found"], only["in_total"]) == (1, 2)
    assert "wide" in read(tmp_path, observation, "workloads/wide")["lines"][0]


def test_workloads_that_run_and_wait_are_listed_with_what_is_known(tmp_path: Path) -> None:
    """Measured work is sorted by its activity; what is not measured or not foreseen is null and comes last."""
    rows = {row["id"]: row for row in read(tmp_path, a_world(), "workloads")["workloads"]}
    names = (
        "state",
        "tenant",
        "queue",
        "nodes",
        "activity_ratio",
        "measured_ratio",
        "since_s",
        "expected_end_s",
        "code",
    )
    assert list(rows) == ["still", "busy", "wide"]
    assert [rows["busy"][name] for name in names] == ["running", "t0", "q0", ["node-0"], 0.5, 1, 0, None, None]
    assert [rows["wide"][name] for name in names[3:]] == [[], None, None, 9300, None, "fairness"]
    blind = read(tmp_path, world("1x4", [holds("job", 4, limit_s=3600.0)], 600.0), "workloads")
    (job,) = blind["workloads"]
    assert [job[name] for name in names[4:]] == [None, None, 0, 3600, None]
    assert job["end_by_limit"]
    assert not rows["busy"]["end_by_limit"]
    assert (blind["window_s"], blind["in_total"], blind["found"]) == (300, 1, 1)


def test_sharers_are_listed_with_their_neighbours(tmp_path: Path) -> None:
    """Trust and share in the words of the contract; the activity of a sharer is an estimate."""
    seen = world("1x4", [holds("a", 1, [0], trust=1, share=1), holds("b", 1, [0], trust=2), holds("c", 1, [1])], 600.0)
    held = replace(seen.snapshot.placements, milli=np.array([500, 500, 1000], np.int32))
    seen = replace(seen, snapshot=replace(seen.snapshot, placements=held))
    rows = {row["id"]: row for row in read(tmp_path, seen, "workloads")["workloads"]}
    assert rows["a"]["beside"] == [{"id": "b", "tenant": "t0", "gpus": 1}]
    assert [(row["trust"], row["share"]) for row in rows.values()] == [
        ("trusted", "dev"),
        ("across-tenants", "never"),
        ("untrusted", "never"),
    ]
    assert rows["c"]["beside"] == []
    assert (rows["a"]["rate_ratio"], rows["a"]["rate_basis"], rows["a"]["predicted_rate_ratio"]) == (None, None, None)
    node = read(tmp_path, seen, "nodes/node-0")
    assert (node["sharing"], node["replicas"]) == ("whole", 1)


def test_the_list_of_workloads_is_filtered_sorted_and_bounded(tmp_path: Path) -> None:
    """A filter finds by state, node and reason; the order names what comes first; an unknown order is refused."""
    asks = client(desk_over(tmp_path, published(a_world())), Role.VIEWER)

    def names(query: str) -> list[str]:
        return [row["id"] for row in asks.get(f"/api/v1/workloads?{query}").json()["workloads"]]

    assert names("find=RUNNING") == ["still", "busy"]
    assert names("find=node-1") == ["still"]
    assert names("find=fairness") == ["wide"]
    assert names("sort=gpus") == ["wide", "busy", "still"]
    assert names("sort=name&limit=2") == ["busy", "still"]
    assert asks.get("/api/v1/workloads?limit=1").json()["found"] == 3
    assert asks.get("/api/v1/workloads?sort=x").status_code == 422


def test_waiting_work_has_the_start_of_its_reservation(tmp_path: Path) -> None:
    """The start and the end that it waits for are the same; where no forecast gives one, the start is null."""
    work = [holds("runs", 8), waits("wide", 16)]
    (row,) = read(tmp_path, world("2x8", work, 60.0, total_s={"runs": 600.0}), "queue")["workloads"]
    rows = read(tmp_path, world("2x8", work, 60.0, total_s={"runs": 600.0}), "workloads?sort=name")["workloads"]
    assert row["expected_start_s"] == rows[0]["expected_end_s"] == rows[1]["expected_start_s"] == 600
    (row,) = read(tmp_path, world("2x8", work, 60.0), "queue")["workloads"]
    assert row["expected_start_s"] is None


def test_the_map_shows_gpus_and_instances(tmp_path: Path) -> None:
    """Held parts, activity, and each instance with its place; one node has its workloads."""
    found = read(tmp_path, a_world(), "nodes")
    assert found["gpus"]["held_milli"] == [1000] * 12 + [0] * 4
    assert found["gpus"]["activity_percent"][:9] == [50] * 8 + [0]
    node = read(tmp_path, a_world(), "nodes/node-1")
    assert [len(gpu["workloads"]) for gpu in node["gpus"]] == [1] * 4 + [0] * 4
    assert node["gpus"][0]["workloads"][0]["id"] == "still"


def test_missing_telemetry_is_null_and_never_zero(tmp_path: Path) -> None:
    """Without telemetry nothing is said about activity."""
    observation = world("1x4", [holds("job", 4)])
    fleet = read(tmp_path, observation, "fleet")["fleet"]
    assert (fleet["held_gpus"], fleet["active_gpus"], fleet["gap_gpus"]) == (4, None, None)
    assert read(tmp_path, observation, "nodes")["gpus"]["activity_percent"] == [None] * 4
    assert read(tmp_path, observation, "history")["active_gpus"] == [None]


@pytest.mark.parametrize("view", VIEWS)
def test_strange_names_reach_every_view_unchanged(tmp_path: Path, view: str) -> None:
    """Markup, quotes, newlines and template syntax are text; the JSON is valid, and NaN is never in it."""
    observation = world("1x4", [waits(STRANGE, 2), waits(f"{STRANGE}2", 64), holds(f"{STRANGE}3", 1)])
    desk = desk_over(tmp_path, published(observation, shipped_policy("recommend")))
    answer = client(desk, Role.VIEWER).get(f"/api/v1/{view}")
    assert answer.status_code == 200
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} in {view}"))
    if view in {"queue", "workloads", "recommendations"}:
        assert json.dumps(STRANGE)[1:-1] in json.dumps(answer.json())


def test_before_the_first_tick_views_say_so(tmp_path: Path) -> None:
    """503 with a time to ask again; the summary answers, so that the page can show that it waits."""
    asks = client(desk_over(tmp_path), Role.VIEWER)
    assert asks.get("/api/v1/summary").json()["tick"] is None
    for view in ("fleet", "tenants", "queue", "workloads", "nodes", "forecasts"):
        answer = asks.get(f"/api/v1/{view}")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")


def test_no_view_is_open(tmp_path: Path) -> None:
    """Without a token: the page's own files and health, nothing else."""
    asks = client(desk_over(tmp_path, published(a_world())))
    for view in (*VIEWS, "events", "openapi.json", "nodes/node-0", "workloads/busy"):
        assert asks.get(f"/api/v1/{view}").status_code == 401


def test_only_the_files_of_the_page_are_served(tmp_path: Path) -> None:
    """A name that leaves the folder is no file; a file that did not change is not sent again."""
    asks = client(desk_over(tmp_path))
    for name in ("../app.py", "..%2fapp.py", "/etc/passwd", "vendor", "vendor/uplot/", "index.html/"):
        assert asks.get(f"/static/{name}").status_code == 404
    first = asks.get("/static/main.js")
    again = asks.get("/static/main.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_every_file_that_the_page_names_exists() -> None:
    """Links of the page and imports of its modules; nothing is loaded from another address."""
    page = FILES["index.html"].body.decode()
    named = set(re.findall(r'(?:href|src)="/static/([^"]+)"', page))
    for name, file in FILES.items():
        if name.endswith(".js") and not name.startswith("vendor/"):
            text = file.body.decode()
            folder = name.rpartition("/")[0]
            for path in re.findall(r'from "\./([^"]+)"', text):
                named.add(f"{folder}/{path}".lstrip("/"))
            named |= set(re.findall(r'from "\.\./([^"]+)"', text))
            assert "innerHTML" not in text
            assert "http:" not in text
    assert not named - FILES.keys()
    assert "vendor/uplot/uPlot.iife.min.js" in named


def test_the_history_is_a_bounded_ring_of_minutes() -> None:
    """Means of a minute, a gap where nothing ticked, a reader gets what is new, and old points go."""
    history, tick = History(), published(a_world())

    def at(now_s: float) -> None:
        history.take(replace(tick, observation=replace(tick.observation, now_s=now_s)))

    for now_s in (0.0, 30.0, 60.0, 1200.0):
        at(now_s)
    found = history.document()
    assert found["at_s"] == [30.0, 60.0, 120.0, 1200.0]
    assert found["gap_gpus"] == [8.0, 8.0, None, 8.0]
    assert history.document(after_s=60.0)["at_s"] == [1200.0]
    for minute in range(2 * KEPT):
        at(1260.0 + 60.0 * minute)
    assert len(history.document()["at_s"]) == KEPT
    at(5.0)  # the clock was set back
    assert history.document()["at_s"] == [5.0]


def test_a_tick_without_a_view_of_the_cluster_leaves_a_gap_in_the_history() -> None:
    """Nothing is known then; a stand-by adds nothing either."""
    history = History()
    tick = published(observe(snapshot("1x4"), 60.0))
    history.take(replace(tick, leads=False))
    blind = replace(tick.observation.signals, capacity_gpus=float("nan"))
    history.take(replace(tick, observation=replace(tick.observation, signals=blind)))
    assert history.document()["at_s"] == []


def test_the_history_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The points of before are there, unknown ones as unknown; a damaged file is replaced and stops nothing."""
    wall_s, tick, file = [0.0], published(a_world()), tmp_path / "history.json"
    first = History(file, lambda: wall_s[0])
    for now_s in (0.0, 60.0, 900.0):
        first.take(replace(tick, observation=replace(tick.observation, now_s=now_s)))
    assert not file.exists()
    wall_s[0] = 31.0
    first.take(replace(tick, observation=replace(tick.observation, now_s=960.0)))
    second = History(file)
    assert second.document() == first.document()
    second.take(replace(tick, observation=replace(tick.observation, now_s=1020.0)))
    assert second.document()["at_s"][-2:] == [960.0, 1020.0]
    for damaged in (b"", b"{", b"[[1, 2.0, [1.0], {}]]", b"[1]"):
        file.write_bytes(damaged)
        third = History(file)
        assert third.document()["at_s"] == []
        third.keep()
        assert file.read_bytes() == b"[]"

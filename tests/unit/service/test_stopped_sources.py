"""Each source stops in turn: what is not known is unknown on every face alike, and its age goes on growing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopilot.http.app import service_app
from autopilot.operate.client import Api, show_recommendations, show_status
from autopilot.service.known import LEAST_LATE_S, LastKnown
from autopilot.service.listeners import Listener
from autopilot.service.settings import Role
from tests.kits.core_world import AUTO
from tests.kits.http_kit import TOKENS, client
from tests.kits.sources_kit import PERIOD_S, SOURCES, StoppingService

VIEWS = ("fleet", "tenants", "queue", "nodes", "forecasts", "recommendations", "state", "summary")
SILENT_S = 60.0
OF_THE_CLUSTER = ("fleet", "pool", "tenant", "queue", "node", "pending", "service", "telemetry", "largest", "forecast")


def read(running: StoppingService) -> dict[str, Any]:
    """All views of the API now."""
    asks, found = client(running.desk, Role.VIEWER), {}
    for view in VIEWS:
        answer = asks.get(f"/api/v1/{view}")
        assert answer.status_code == 200, answer.text
        found[view] = answer.json(object_pairs_hook=once)
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A document whose names are there once."""
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def told(running: StoppingService, capsys: pytest.CaptureFixture[str]) -> str:
    """What the commands print that show the state of the service."""
    listener = Listener(service_app(running.desk), "127.0.0.1:0", "test")
    listener.start()
    try:
        api = Api(listener.url, TOKENS[Role.VIEWER])
        show_status(api, None)
        show_recommendations(api, None)
    finally:
        listener.close()
    return capsys.readouterr().out


def numbers(document: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document with its place."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from numbers(value, f"{path}.{name}")
    elif isinstance(document, list):
        for value in document:
            yield from numbers(value, path)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield path, document


def after(folder: Path, what: str) -> tuple[StoppingService, dict[str, Any]]:
    """A service whose source stopped a minute ago, and what it answers after one more tick."""
    running = StoppingService(folder)
    running.pass_s(PERIOD_S)
    running.tick()
    running.stop(what)
    running.pass_s(SILENT_S)
    running.tick()
    return running, read(running)


def test_nothing_is_stale_while_every_source_answers(tmp_path: Path) -> None:
    """All figures are there, with the ages of just now; the planted rules below can fail."""
    running = StoppingService(tmp_path)
    found = read(running)
    assert found["summary"]["stale"] == []
    assert found["fleet"]["fleet"]["active_gpus"] == running.scrape()["fleet_active_gpus"] == 4.0
    assert found["forecasts"]["services"][0]["p99_s"] == 1.0
    assert found["forecasts"]["services"][0]["demand"]
    running.pass_s(3.0)
    assert {each["name"]: each["age_s"] for each in read(running)["state"]["collectors"]} == dict.fromkeys(SOURCES, 3.0)
    assert running.scrape()["tick_age_seconds"] == 3.0


@pytest.mark.parametrize("what", ["inventory", "work", "cluster"])
def test_without_a_list_of_the_cluster_no_face_has_a_figure_of_it(tmp_path: Path, what: str) -> None:
    """Null in each field of the API, no sample in the metrics, the reason and the age of the last view."""
    running, found = after(tmp_path, what)
    ours = {"tick", "now_s", "window_s", "age_s", "telemetry_age_s", "gaps"}
    for view in ("fleet", "tenants", "queue", "nodes", "forecasts", "recommendations"):
        known = {path for path, _ in numbers(found[view])} - {f".{name}" for name in ours}
        assert known == set(), view
        assert found[view].get("age_s", SILENT_S) == SILENT_S
    assert [path for path, _ in numbers(found["state"]["signals"])] == []
    assert (found["state"]["waiting"], found["summary"]["recommendations"]) == (None, None)
    assert found["summary"]["seen_age_s"] == SILENT_S
    assert found["summary"]["stale"][0]["what"] == "the cluster"
    assert found["summary"]["halted"]
    about = [name for name in running.scrape() if name.startswith(OF_THE_CLUSTER)]
    assert about == []
    asks = client(running.desk, Role.VIEWER)
    for path in ("nodes/node-0", "workloads/busy"):
        assert asks.get(f"/api/v1/{path}").status_code == 503, "it may still be there"


@pytest.mark.parametrize("what", [*SOURCES, "cluster"])
def test_the_age_of_a_silent_source_grows_on_every_face(tmp_path: Path, what: str) -> None:
    """Also between two ticks and while the cluster's clock stands still; others stay as old as the last tick."""
    running, found = after(tmp_path, what)
    silent = SOURCES if what == "cluster" else (what,)
    for waited_s in (0.0, 7.0):
        running.pass_s(waited_s)
        found, scraped = read(running), running.scrape()
        for each in found["state"]["collectors"]:
            expected_s = waited_s + (SILENT_S if each["name"] in silent else 0.0)
            assert each["age_s"] == scraped[f"collector_age_seconds{{collector={each['name']}}}"] == expected_s
            assert bool(each["problem"]) == (each["name"] in silent)
        assert found["summary"]["age_s"] == scraped["tick_age_seconds"] == waited_s
        lists = {each["kind"]: each["age_s"] for each in found["state"]["lists"]}
        assert lists == {kind: waited_s + (SILENT_S if kind in silent else 0.0) for kind in ("inventory", "work")}
    said = {each["what"] for each in found["summary"]["stale"]}
    assert {f"data of {name}" for name in silent} <= said
    assert {gap["source"] for gap in found["state"]["gaps"]} >= set(silent)


@pytest.mark.parametrize("what", ["nothing", "telemetry", "cluster"])
def test_the_commands_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    """A figure where it is known, else `-`; and of each command what is stale since when."""
    running, _ = after(tmp_path, what)
    lines = told(running, capsys).splitlines()
    place = next(at for at, line in enumerate(lines) if line.startswith("capacity"))
    figures = dict(zip(re.split(r"\s{2,}", lines[place]), re.split(r"\s{2,}", lines[place + 1]), strict=True))
    ages = lines[place + 2]
    if what == "cluster":
        assert set(figures.values()) == {"-"}
        assert "cluster last seen 60 s ago" in ages
    else:
        assert (figures["capacity"], figures["allocated"]) == ("16", "12")
        assert figures["active"] == ("-" if what == "telemetry" else "4")
        assert "cluster last seen 0 s ago" in ages
    said = [line for line in lines if line.startswith("stale: data of telemetry, 60 s ago: telemetry does not answer")]
    assert len(said) == (0 if what == "nothing" else 2), "of each command"


def test_without_telemetry_activity_is_unknown_and_the_rest_is_known(tmp_path: Path) -> None:
    """A dash with the age of the newest sample."""
    running, found = after(tmp_path, "telemetry")
    fleet, scraped = found["fleet"]["fleet"], running.scrape()
    assert (fleet["held_gpus"], scraped["fleet_held_gpus"]) == (12, 12)
    for name in ("active_gpus", "gap_gpus", "hardware_ratio", "real_utilization_ratio"):
        assert fleet[name] is None, name
        assert f"fleet_{name}" not in scraped
    assert set(found["nodes"]["gpus"]["activity_percent"]) == {None}
    assert {row["idle_gpus"] for row in found["tenants"]["tenants"]} == {None}
    assert (found["fleet"]["telemetry_age_s"], found["fleet"]["age_s"]) == (SILENT_S, 0.0)


def test_without_the_source_of_services_their_latency_is_unknown(tmp_path: Path) -> None:
    """In the API and in the metrics."""
    running, found = after(tmp_path, "slo")
    service = found["forecasts"]["services"][0]
    assert (service["p99_s"], service["late_ratio"], service["queued"]) == (None, None, None)
    assert not [name for name in running.scrape() if name.startswith(("service_p99", "service_late", "service_queued"))]
    assert service["replicas"] == running.scrape()["service_replicas{service=chat,state=present}"] == 2


def test_without_a_forecaster_there_is_no_forecast(tmp_path: Path) -> None:
    """It is said as stale, with the reason of the model."""
    running, found = after(tmp_path, "forecaster")
    assert found["forecasts"]["services"][0]["demand"] == []
    assert not [name for name in running.scrape() if name.startswith("forecast")]
    (stale,) = found["summary"]["stale"]
    assert stale["what"] == "answers of forecaster"
    assert "no model answers" in stale["why"]


def test_a_tick_is_stale_after_two_periods(tmp_path: Path) -> None:
    """The page judges by the same age; the process is not ready after a minute."""
    running = StoppingService(tmp_path)
    running.pass_s(2 * PERIOD_S)
    assert (found := read(running)["summary"])["age_s"] == found["late_s"] == 2 * PERIOD_S
    assert found["stale"] == []
    running.pass_s(0.1)
    assert [each["what"] for each in read(running)["summary"]["stale"]] == ["the last tick"]
    assert client(running.desk).get("/readyz").status_code == 200
    running.pass_s(200.0)
    assert client(running.desk).get("/readyz").json()["status"] == "no tick for 210 s"
    assert len(read(running)["summary"]["stale"]) == 1, "data is as old as the tick"
    running.publisher.publish(replace(running.desk.latest(), leads=False))
    assert read(running)["summary"]["stale"] == [], "the leader has newer ticks"
    assert read(running)["summary"]["age_s"] == pytest.approx(210.1)


def test_a_source_that_answers_with_old_data_alone_is_stale_once_no_action_relies_on_it(tmp_path: Path) -> None:
    """It names no problem; its newest sample is older than `freshness.telemetry_s`."""
    running = StoppingService(tmp_path)
    running.sampled_s = running.now_s
    for passed_s, said in ((AUTO.freshness.telemetry_s, []), (1.0, ["data of telemetry"])):
        running.pass_s(passed_s)
        running.tick()
        assert [each["what"] for each in read(running)["summary"]["stale"]] == said


def test_ages_are_seconds_of_the_process_at_any_speed_of_the_cluster() -> None:
    """What was 60 s old by the clock of a cluster that runs 60 times as fast is a second old, and ages as we do."""
    at_s = [10.0]
    known = LastKnown(60.0, 0.1, lambda: at_s[0])
    known.tick(600.0, 600.0, float("nan"), {"work/api": 540.0}, [("api", 540.0), ("never", float("nan"))])
    at_s[0] += 4.0
    assert (known.ages().tick_s, known.ages().cluster_s, known.ages().telemetry_s) == (4.0, 4.0, None)
    assert (known.ages().views_s, known.ages().collectors_s) == ({"work/api": 5.0}, {"api": 5.0})
    known.tick(600.0, float("nan"), float("nan"), {"work/api": 540.0}, [("api", 540.0)])
    at_s[0] += 1.0
    assert (known.ages().tick_s, known.ages().cluster_s, known.ages().collectors_s["api"]) == (1.0, 5.0, 6.0)
    assert (known.late_s(0.05), known.late_s(3.0)) == (LEAST_LATE_S, 6.0)

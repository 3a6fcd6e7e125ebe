"""`autopilot forecast`: what a journal holds of promises, and how they were kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.app.decisions.foreseen import DemandRecord, JobRecord, coverage, read_foreseen
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import LEVELS, REQUESTS, Forecast, Forecasts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ServiceTable, State, make
from autopilot.records.journal import SqliteJournal
from tests.kits.core_world import AUTO, Item, decide, done, holds, waits, world

BAND = (60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Quantiles of a run time at LEVELS: five minutes in the middle, twenty at 0.9."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a journal goes, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path / "run.journal"


def record(path: Path, observations: Sequence[Observation]) -> None:
    """A journal of those observations, each decided."""
    memory = ControllerMemory()
    with SqliteJournal(path, durable=False, rules=JournalRules(keyframe_s=1e4, keyframe_ticks=64)) as journal:
        for observation in observations:
            step = decide(observation, AUTO, memory)
            journal.intend(observation, AUTO, memory, step.decision, step.instructions)
            journal.conclude(observation.tick, done(step.instructions, observation.now_s))
            memory = step.memory


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


# --- jobs -------------------------------------------------------------------------------------------


def jobs(now_s: float, *work: Item, total_s: Mapping[str, Any] | None = None) -> Observation:
    """One tick of a cluster with jobs."""
    return world("2x8", work, now_s, total_s=total_s or {}, tick=int(now_s))


def ended(name: str, ran_s: float, state: State = State.SUCCEEDED) -> Item:
    """A job that has just ended."""
    return waits(name, 1, state=state, served_s=ran_s, ended_s=0.0)


def a_run(path: Path) -> None:
    """Five jobs: three end within their 0.9 bound, one far beyond, one goes on."""
    promised = dict.fromkeys("abcde", BAND)
    record(
        path,
        [
            jobs(10.0, *(holds(name, 1, start_s=0.0) for name in "abcde"), total_s=promised),
            jobs(
                400.0,
                ended("a", 290.0),
                *(holds(name, 1, start_s=0.0) for name in "bcde"),
                total_s=dict.fromkeys("bcde", tuple(10 * value for value in BAND)),
            ),
            jobs(
                900.0,
                ended("b", 50.0, State.FAILED),
                ended("c", 1100.0),
                *(holds(name, 1, start_s=0.0) for name in "de"),
                total_s=dict.fromkeys("de", BAND),
            ),
            jobs(7500.0, ended("d", 7400.0), holds("e", 1, start_s=0.0), total_s={"e": BAND}),
        ],
    )


def test_a_promise_is_what_was_said_first(path: Path) -> None:
    """Later forecasts of the same job, far wider, change neither promise nor coverage."""
    a_run(path)
    found = read_foreseen(path, "e", None)
    assert isinstance(found, JobRecord)
    by_name = {each.job: each for each in found.promises}
    assert all(each.total_s == BAND and each.made_s == 0.0 for each in by_name.values())
    assert [by_name[name].came_s for name in "abcd"] == [290.0, 50.0, 1100.0, 7400.0]
    assert np.isnan(by_name["e"].came_s)
    kept = {each.level: each for each in coverage([(p.levels, p.total_s, p.came_s) for p in found.promises])}
    assert (kept[0.5].share, kept[0.9].share, kept[0.99].share, kept[0.05].share) == (0.5, 0.75, 0.75, 0.25)
    assert {each.count for each in kept.values()} == {4}


def test_a_running_job_shows_what_is_left(path: Path) -> None:
    """It has outlived its middle: what is left is asked of those that run as long."""
    a_run(path)
    found = read_foreseen(path, "e", 900.0)
    assert isinstance(found, JobRecord)
    now = found.now
    assert now is not None
    assert (now.state, now.at_s, now.ran_s) == (State.RUNNING, 900.0, 900.0)
    assert now.left_s == tuple(sorted(now.left_s))
    assert now.left_s[LEVELS.index(0.99)] > 3600.0 - 900.0
    assert len(found.promises) == 5, "those that are open are there, too"


def test_at_a_time_nothing_later_is_known(path: Path) -> None:
    """--at shows what was known then."""
    a_run(path)
    found = read_foreseen(path, "e", 400.0)
    assert isinstance(found, JobRecord)
    assert [each.job for each in found.promises if np.isfinite(each.came_s)] == ["a"]


def test_the_command_shows_a_job(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Band, what is left, how promises were kept, a picture and a document."""
    a_run(path)
    assert call("forecast", "e", "--journal", str(path), "--json", "e.json", "--picture", "e.png") == 0
    said = capsys.readouterr().out
    assert "job e of" in said
    assert "5 min median, 20 min at 0.9; from 60 s to 1 h (0.05 to 0.99)" in said
    assert "all (4): 0.05: 0.250, 0.25: 0.250, 0.5: 0.500, 0.75: 0.500, 0.9: 0.750" in said
    assert "1 more forecasts are open" in said
    assert Path("e.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(Path("e.json").read_text())
    assert document["total_s"] == list(BAND)
    assert document["delivered"]["all"][4] == {"promised": 0.9, "delivered": 0.75, "count": 4}
    assert call("forecast", "d", "--journal", str(path)) == 0
    said = capsys.readouterr().out
    assert "it ran 2 h 3 min; forecast by test at 0 s" in said
    picture = Path(said.split("picture: ")[1].split("\n")[0])
    assert picture.read_bytes().startswith(b"<?xml")


def test_where_the_model_abstains_it_is_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No job alike has ended; or the run had no model at all."""
    record(path, [jobs(10.0, waits("a", 1), total_s={}), world("2x8", [waits("a", 1)], 20.0, tick=20)])
    assert call("forecast", "a", "--at", "10s", "--journal", str(path)) == 0
    said = capsys.readouterr().out
    assert "no run-time forecast: the model test abstains" in said
    assert "past coverage: unknown yet" in said
    assert call("forecast", "a", "--journal", str(path)) == 0
    assert "no run-time forecast: this run made none" in capsys.readouterr().out


def test_an_unknown_name_and_bad_places_are_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One message each; the journal is not overwritten."""
    a_run(path)
    before = path.read_bytes()
    for arguments, words in (
        (("nobody",), "no service or job 'nobody'"),
        (("e", "--picture", "e.gif"), "must end in .svg or .png"),
        (("e", "--picture", "none/e.svg"), "does not exist; create it first"),
        (("e", "--json", str(path)), "is an input of this command"),
        (("e", "--at", "soon"), "--at"),
    ):
        assert call("forecast", *arguments, "--journal", str(path)) == 2
        assert words in capsys.readouterr().err
    assert path.read_bytes() == before
    assert call("forecast", "e", "--journal", "none.journal") == 2
    assert "no such journal" in capsys.readouterr().err
    with pytest.raises(InputError, match="no service or job"):
        read_foreseen(path, "", None)


def test_the_hazards_of_a_job_are_counted_and_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve jobs ended after ten minutes, one runs on: by age what it risks, who gets there, and the index."""
    before = jobs(10.0, *(holds(f"j{at}", 1, start_s=0.0) for at in range(12)), holds("on", 1, start_s=0.0))
    ends = jobs(700.0, *(ended(f"j{at}", 600.0) for at in range(12)), holds("on", 1, start_s=0.0))
    later = jobs(1500.0, holds("on", 1, start_s=0.0))
    given = later.forecasts.runtimes
    assert given is not None
    told = replace(given, hazard_index_per_s=np.array([1.0 / 7200.0]))
    record(path, [before, ends, replace(later, forecasts=replace(later.forecasts, runtimes=told))])
    assert call("forecast", "on", "--journal", str(path), "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hazard_index_per_s"] == pytest.approx(1.0 / 7200.0)
    hazards = found["hazards"]
    assert (hazards["age_s"], hazards["ended"], hazards["at_s"]) == (1500.0, 12, 1500.0)
    busiest = int(np.argmax(hazards["hazard_per_s"]))
    assert hazards["from_s"][busiest] <= 600.0 < hazards["from_s"][busiest + 1]
    assert hazards["lasting_ratio"][busiest] == 1.0
    assert call("forecast", "on", "--journal", str(path)) == 0
    text = capsys.readouterr().out
    assert "hazard index in the run: 0.5 per hour" in text
    assert "hazards by age of t0, 1 GPU, counted from this journal at 25 min (12 of its jobs have ended)" in text
    assert "23 min <- now" in text


def test_without_ends_hazards_are_unknown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of guesses is not printed."""
    record(path, [jobs(10.0, holds("a", 1, start_s=0.0))])
    assert call("forecast", "a", "--journal", str(path)) == 0
    assert "hazards by age: unknown, too few jobs have ended in this journal" in capsys.readouterr().out


# --- services ---------------------------------------------------------------------------------------


def demand(made_s: float, bound: float, *, known: bool = True) -> Forecast:
    """A forecast of the peak of `chat` within two and ten minutes: 0.9 at `bound`, 0.99 at twice as much."""
    values = np.array([[[bound, 2 * bound], [bound, 2 * bound]]]) if known else np.full((1, 2, 2), np.nan)
    return Forecast(
        "gate",
        made_s,
        ("chat",),
        (120.0, 600.0),
        (0.9, 0.99),
        values,
        kind=REQUESTS,
        chosen=("boosting",),
        history=np.array([900], np.int32),
        reasons=("" if known else "three observations only",),
    )


def serving(now_s: float, rate: float, forecast: Forecast | None) -> Observation:
    """One tick of a service that is asked `rate` times a second."""
    services: ServiceTable = make(
        ServiceTable,
        id=["chat"],
        uid=["chat"],
        queue=[0],
        replicas=[1],
        ready_replicas=[1],
        min_replicas=[1],
        max_replicas=[4],
        objective_s=[1.0],
        p99_s=[0.5],
        violation_ratio=[0.0],
        rate_rps=[rate],
        queue_depth=[0.0],
        age_s=[0.0],
        recent_rps=[rate],
    )
    observation = world("1x8", (), now_s, tick=int(now_s))
    return replace(
        observation,
        snapshot=replace(observation.snapshot, services=services),
        forecasts=Forecasts(None, () if forecast is None else (forecast,)),
    )


def a_service(path: Path) -> None:
    """Twenty minutes at 10 a second; at the eleventh a minute at 35. A forecast each minute, 0.9 at 12."""
    record(
        path,
        [serving(60.0 * minute, 35.0 if minute == 11 else 10.0, demand(60.0 * minute, 12.0)) for minute in range(21)],
    )


def test_what_came_is_the_peak_after_the_promise(path: Path) -> None:
    """Minutes that begin after the promise and end within its horizon; open ones are not counted."""
    a_service(path)
    found = read_foreseen(path, "chat", None)
    assert isinstance(found, list)
    (record_of,) = found
    short = {each.made_s: each.came for each in record_of.promises if each.horizon_s == 120.0}
    # the minute that ends at 660 s begins at 600 s: promises made at 540 s and 600 s are about it
    assert [made_s for made_s, came in short.items() if came == 35.0] == [540.0, 600.0]
    assert [made_s for made_s, came in short.items() if np.isnan(came)] == [1140.0, 1200.0]
    kept = {
        each.level: each
        for each in coverage([(p.levels, p.values, p.came) for p in record_of.promises if p.horizon_s == 120.0])
    }
    assert kept[0.9].count == 19
    assert kept[0.9].share == pytest.approx(17 / 19)
    assert kept[0.99].share == pytest.approx(17 / 19)


def test_the_command_shows_a_service(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Model, age, bounds, promised and delivered, and a picture."""
    a_service(path)
    assert call("forecast", "chat", "--journal", str(path), "--json", "chat.json", "--picture", "chat.svg") == 0
    said = capsys.readouterr().out
    assert "requests a second: boosting, from 900 observations" in said
    assert "peak of the next 10 min: 12 at 0.9, 24 at 0.99" in said
    assert "next 2 min (19): 0.9: 0.895, 0.99: 0.895" in said
    assert b"<svg" in Path("chat.svg").read_bytes()
    delivered = json.loads(Path("chat.json").read_text())["demand"][REQUESTS]["delivered"]
    assert delivered["120"][0]["count"] == 19


def test_an_abstaining_model_gives_its_reason(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And how often it did."""
    record(path, [serving(60.0 * minute, 5.0, demand(60.0 * minute, 1.0, known=False)) for minute in range(3)])
    assert call("forecast", "chat", "--journal", str(path)) == 0
    said = capsys.readouterr().out
    assert "abstains: three observations only" in said
    assert "abstained 3 times: three observations only" in said


def test_a_horizon_that_abstains_breaks_no_promise(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was promised for ten minutes: nothing is counted there."""
    partly = []
    for minute in range(21):
        forecast = demand(60.0 * minute, 12.0)
        values = forecast.values.copy()
        values[0, 1] = np.nan
        partly.append(serving(60.0 * minute, 10.0, replace(forecast, values=values, reasons=("too few outcomes",))))
    record(path, partly)
    assert call("forecast", "chat", "--journal", str(path)) == 0
    said = capsys.readouterr().out
    assert "next 2 min (19): 0.9: 1.000, 0.99: 1.000" in said
    assert "next 10 min (" not in said
    assert "peak of the next 10 min: no forecast yet" in said
    assert "incomplete: too few outcomes" in said


def test_who_names_no_service_is_told_which_there_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name from another run, or a slip of the pen."""
    record(path, [serving(0.0, 5.0, None)])
    assert call("forecast", "search", "--journal", str(path)) == 2
    assert "no service or job 'search'; its services are chat; " in capsys.readouterr().err


def test_the_last_forecast_that_promised_all_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the end of a run few observations exist; the message names a better time."""
    whole, silent = demand(60.0, 12.0), demand(120.0, 1.0, known=False)
    record(path, [serving(0.0, 5.0, None), serving(60.5, 5.0, whole), serving(120.0, 5.0, silent)])
    assert call("forecast", "chat", "--journal", str(path)) == 0
    said = capsys.readouterr().out
    assert "made at 2 min, 0 s old" in said
    assert "the last complete forecast was made at 60 s: --at 61s shows it" in said
    assert call("forecast", "chat", "--journal", str(path), "--at", "61s") == 0
    said = capsys.readouterr().out
    assert "made at 60 s" in said
    assert "promised all last" not in said


def test_a_run_without_forecasts_of_demand_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No picture, no error: a clear message."""
    record(path, [serving(0.0, 5.0, None), serving(60.0, 5.0, None)])
    assert call("forecast", "chat", "--journal", str(path)) == 0
    said = capsys.readouterr().out
    assert "holds no forecasts of demand" in said
    assert "picture" not in said
    found = read_foreseen(path, "chat", None)
    assert found == [DemandRecord("chat", REQUESTS)]

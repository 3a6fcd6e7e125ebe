"""`autopilot forecast --mix`: what a journal shows as arriving, and what may arrive."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autopilot.app.commands.mix_commands import ANY, SHARE, Arrivals, foreseen_mix, read_arrivals
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Observation
from tests.kits.core_world import waits, world
from tests.unit.app.test_forecast_command import call, record

HOUR_S = 3600.0
START_S = 10 * HOUR_S


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a journal goes, in a folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path / "run.journal"


def tick(now_s: float, *sizes: tuple[str, int], submit_s: float | None = None) -> Observation:
    """One tick at which those gangs wait, submitted just then."""
    when_s = now_s if submit_s is None else submit_s
    return world("2x8", [waits(name, gpus, submit_s=when_s) for name, gpus in sizes], now_s, tick=int(now_s))


def a_day(place: Path) -> None:
    """Six hours: each brings three gangs of one GPU and one of six; an old one waited when the record began."""
    ticks = [tick(START_S, ("old", 8), submit_s=1.0)]
    for hour in range(6):
        at_s = START_S + hour * HOUR_S + 60.0
        ticks.append(tick(at_s, ("old", 8), *((f"{hour}-{n}", 1) for n in range(3)), (f"{hour}-wide", 6)))
    record(place, [*ticks, tick(START_S + 6 * HOUR_S)])


def test_each_gang_counts_once_when_it_was_submitted(place: Path) -> None:
    """By its size; what was submitted before the record began is no arrival of it."""
    a_day(place)
    found = read_arrivals(place, None)
    assert (found.from_s, found.to_s) == (START_S, START_S + 6 * HOUR_S)
    assert found.kind.count("1 GPU") == 18
    assert found.kind.count("8 GPUs") == 6
    assert len(found.at_s) == 24
    assert set(found.pool) == {ANY}
    assert min(found.at_s) == START_S + 60.0
    half = read_arrivals(place, START_S + 3 * HOUR_S)
    assert len(half.at_s) == 12


def test_rates_and_parts_come_with_their_bounds() -> None:
    """Three in four are of one GPU; the bounds of each part hold it, and the counts rise with the level."""
    arrivals = Arrivals(0.0, 48 * HOUR_S)
    for at_s in np.arange(0.0, 48 * HOUR_S, 900.0).tolist():
        arrivals.at_s.append(at_s)
        arrivals.pool.append("H100")
        arrivals.kind.append("4 GPUs" if at_s % 3600.0 == 0.0 else "1 GPU")
    pools, hours = foreseen_mix(arrivals, 3)
    assert pools == ("H100",)
    assert [hour.kinds for hour in hours] == [("1 GPU", "4 GPUs")] * 3
    assert [hour.from_s for hour in hours] == [48 * HOUR_S, 49 * HOUR_S, 50 * HOUR_S]
    for hour in hours:
        assert hour.expected.sum() == pytest.approx(4.0, rel=0.1)
        assert hour.shares[0, 0] == pytest.approx(0.75, abs=0.05)
        low, middle, high = hour.share_bounds[0, 0]
        assert low < 0.7 < middle < 0.8 < high
        assert (np.diff(hour.counts, axis=2) >= 0).all()


def test_kinds_are_told_apart_and_stand_by_size() -> None:
    """Whole GPUs first, the small before the large; then profiles and shares."""
    arrivals = Arrivals(0.0, 2 * HOUR_S)
    for kind in ("16 GPUs", SHARE, "2 GPUs", "1g.10gb", "1 GPU"):
        arrivals.at_s.append(60.0)
        arrivals.pool.append(ANY)
        arrivals.kind.append(kind)
    _, hours = foreseen_mix(arrivals, 1)
    assert hours[0].kinds == ("1 GPU", "2 GPUs", "16 GPUs", "1g.10gb", SHARE)


@pytest.mark.parametrize(("watched_s", "jobs"), [(600.0, 3), (2 * HOUR_S, 0)])
def test_too_little_is_said(watched_s: float, jobs: int) -> None:
    """Less than an hour, or nothing submitted: the message has the data, the requirement, and the fix."""
    arrivals = Arrivals(0.0, watched_s, [60.0] * jobs, [ANY] * jobs, ["1 GPU"] * jobs)
    with pytest.raises(InputError, match=f"shows {jobs} submissions in .* are needed: name a longer run"):
        foreseen_mix(arrivals)


def test_the_command_prints_a_row_an_hour_and_writes_them(
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Expected arrivals with their band and part, by kind; the same as JSON."""
    a_day(place)
    out = place.parent / "mix.json"
    assert call("forecast", "--mix", "--journal", str(place), "--json", str(out)) == 0
    printed = capsys.readouterr().out
    assert "from 24 submissions in 6 h" in printed
    assert "on any model:" in printed
    assert [line.split("  ")[0].strip() for line in printed.splitlines() if line.startswith(("16 h", "21 h"))] == [
        "16 h",
        "21 h",
    ]
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["schema"] == "gpu-autopilot/mix/1"
    assert document["kinds"] == ["1 GPU", "8 GPUs"]
    first = document["hours"][0]["pools"][ANY]
    assert first["expected"][0] > first["expected"][1] > 0.0
    assert len(first["counts"][0]) == len(document["levels"]) == 3


@pytest.mark.parametrize("arguments", [["--mix", "search"], ["--mix", "--picture", "a.svg"], []])
def test_what_cannot_be_meant_is_refused(arguments: list[str], place: Path) -> None:
    """The mix is of the whole cluster; without it a service or a job must be named."""
    a_day(place)
    assert call("forecast", *arguments, "--journal", str(place)) == 2

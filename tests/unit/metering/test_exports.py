"""Exports that are read back, and questions of a bill that have no whole answer."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pandas as pd
import pytest

from autopilot.app.commands.showback_commands import Words, run_showback
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.core.model.errors import InputError
from autopilot.metering.amounts import Row
from autopilot.metering.focus import focus_rows
from autopilot.metering.segments import open_store
from tests.kits.metering_kit import asked
from tests.tidy.tree import ROOT
from tests.unit.metering.test_showback import PRICES, ROWS, row, stored

Capture = pytest.CaptureFixture[str]
NAMES = ("=cmd()", "'=cmd()", "\tx", "@x", "-1", 'a,b;"c"|d', "a\x07b", "'", "NA", "null", " lead")


def test_an_export_is_corrected_whatever_its_names_and_labels_are(tmp_path: Path, capsys: Capture) -> None:
    """Formulas, separators and words for unknown: nothing changed is no row, and a change is one by its own name.

    A bill by label has the values as they are, work without the label as (none), and an unknown label is named.
    """
    (tmp_path / "p.yaml").write_text("currency: EUR\nregion: a\nregions: {a: {gpu_hour: {other: 1}}}\n")

    def rows(more: float) -> list[Row]:
        held = [
            row(
                "held",
                1,
                tenant=name,
                queue=name,
                workload=name,
                uid=str(at),
                borrowed=1,
                labels=json.dumps({"k": name}),
            )
            for at, name in enumerate(NAMES)
        ]
        held.append(row("held", more, tenant="plain", uid="p", borrowed=more))
        return [row("capacity", 20), *held, row("idle", 9 - more)]

    stored(tmp_path / "one", rows(1)), stored(tmp_path / "two", rows(2))
    prices = tmp_path / "p.yaml"
    for first in ("first.csv", "first.parquet"):
        run_showback(tmp_path / "one", Words(form="focus", prices=prices, target=tmp_path / first))
        again = Words(form="focus", prices=prices, target=tmp_path / "again.csv", corrects=(tmp_path / first,))
        run_showback(tmp_path / "one", again)
        assert "nothing has changed" in capsys.readouterr().out
        run_showback(tmp_path / "two", again)
        found = pd.read_csv(tmp_path / "again.csv")
        assert set(found["SubAccountId"].dropna()) == {"plain"}
        assert found["BilledCost"].sum() == pytest.approx(1.0)
    run_showback(tmp_path / "one", Words(by="label:k", prices=prices, form="csv"))
    named = {line.split(",")[0] for line in capsys.readouterr().out.splitlines()}
    assert {"'=cmd()", "''=cmd()", "(none)", "NA"} <= named
    run_showback(tmp_path / "one", Words(by="label:kk", prices=prices, form="csv"))
    assert "no work of this period has the label 'kk'; this period has k; did you mean k?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (Words(zone="Europe/Belin"), "--zone: 'Europe/Belin' is no time zone; did you mean Europe/Berlin?"),
        (Words(zone="../../etc/passwd"), "--zone: '../../etc/passwd' is no time zone"),
        (Words(since="2026-01-01", until="2026-02-01"), "nothing was metered in this time; rows begin at 2026-11-23"),
        (Words(since="2026-12-01"), "nothing was metered in this time; rows begin at 2026-11-23"),
        (Words(until="2026-12-01"), "--until 2026-12-01 is after the data: rows begin at 2026-11-23 00:00:00 and end"),
        (Words(by="month"), "2026-11 is not whole: its rows end at 2026-11-23 01:00:00 UTC"),
        (Words(by="label:"), "--by: 'label:' is not one of tenant"),
        (
            Words(form="focus", corrects=(Path("bad.csv"),)),
            "bad.csv: line 2, column BilledCost: 'much' is not a number",
        ),
        (Words(form="focus", corrects=(Path("none.csv"),)), "none.csv: column BilledCost is null in 6 rows; give the"),
    ],
)
def test_a_question_that_has_no_whole_answer_says_so_once(
    words: Words, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Refused where there is nothing to show, else shown with one line."""
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "m", ROWS)
    frame = focus_rows(asked(open_store(tmp_path / "m"), PRICES))
    for name, cell in (("bad", "much"), ("none", "")):
        frame.astype(object).assign(BilledCost=cell).to_csv(f"{name}.csv", index=False)
    try:
        run_showback(tmp_path / "m", words)
        said = capsys.readouterr().err
        assert said.count("\n") == 1
    except InputError as error:
        said = str(error)
    assert says in said
    assert "\n" not in said.strip()


def test_the_jobs_of_the_page_keep_their_dates(tmp_path: Path, capsys: Capture) -> None:
    """The example of docs/finance.md begins on a day of January, so its bills have months."""
    runpy.run_path(str(ROOT / "examples" / "quarter_of_jobs.py"), run_name="__main__")
    (tmp_path / "jobs.csv").write_text(capsys.readouterr().out)
    world = build_world(SimulateOptions(jobs=tmp_path / "jobs.csv", cluster="2x8"))
    assert world.start_s == pd.Timestamp("2026-01-05T08:00:00Z").timestamp()
    assert len(world.jobs().submit_s) == 240

"""What the page says of decisions: counts, the best and the costliest, refusals, advice; all of them searchable."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from autopilot.report import embedded
from autopilot.report.advice import NOTHING, advice
from autopilot.report.data import PolicyRun
from autopilot.report.embedded import anchor, packed, parts_of, unpacked
from autopilot.report.html_tables import key_figures, reservations, tenants
from autopilot.report.page import render_page, write_report
from autopilot.report.summary import summary
from tests.kits.report_data import make_report, with_result

HOSTILE = "<b onclick=alert(1)>&\"'</b> x/y#z"


@pytest.fixture(scope="module")
def run() -> PolicyRun:
    """260 decisions, every third refused by the budget."""
    return make_report(("autopilot",), services=False, span_s=7200.0, nodes=2).policies[0]


def told(run: PolicyRun) -> str:
    """The summary of a run."""
    return summary(run, parts_of([(run.name, run.decisions)]))


# --- the summary ------------------------------------------------------------------------------------


def test_the_summary_answers_what_and_why_in_order(run: PolicyRun) -> None:
    """Counts by action, then folded: most useful, costliest, refusals by guard, reasons for waiting."""
    headings = re.findall(r"<h3>(.*?)</h3>", told(run))
    assert headings == [
        "Most useful decisions",
        "Costliest decisions",
        "Refused by guards",
        "What waiting work waited for",
    ]
    text = told(run)
    assert "admit_gang<small>start waiting work that fits whole</small></th><td>87</td><td>-</td>" in text
    assert "<th scope=row>budget<small>budget_cluster</small></th><td>86</td>" in text
    assert "budget.per_cluster (4)" in text
    assert "<th scope=row>capacity</th><td>90.0 %</td><td>2,500 GPU-h</td><td>vision 2,500 GPU-h</td>" in text


def test_the_best_and_the_costliest_lead_to_their_case(run: PolicyRun) -> None:
    """Accepted ones alone, the largest first, each with a link to a decision that the page holds."""
    useful = sorted((row for row in run.decisions if row.answer == "accepted"), key=lambda row: -row.benefit_gpu_s)
    links = re.findall(r'href="#d-([^"]+)"', told(run))
    assert links[:5] == [row.id for row in useful[:5]]
    assert set(links) <= {row.id for row in run.decisions}


def test_the_costliest_show_what_was_really_lost(run: PolicyRun) -> None:
    """Beside the expectation, where it is known; the sum of the run stands below the counts."""
    rows = tuple(dataclasses.replace(row, really_lost_gpu_s=36.0) for row in run.decisions)
    assert "Really lost" not in told(run)
    text = told(dataclasses.replace(run, decisions=rows))
    assert text.count("<th scope=col>Actual loss</th>") == 1
    assert "<th scope=row>0.233 GPU-h</th><td>0.6 GPU-min</td>" in text
    assert "work done twice, is 17 GPU-h" in text


def test_a_run_without_decisions_has_no_summary(run: PolicyRun) -> None:
    """A baseline decides nothing that could be told."""
    assert told(dataclasses.replace(run, decisions=())) == ""


# --- advice -----------------------------------------------------------------------------------------


def with_answers(run: PolicyRun, answer: str, *, gain_gpu_s: float, code: str = "margin") -> PolicyRun:
    """The refused decisions with another answer, code and gain."""
    rows = tuple(
        row
        if row.answer == "accepted"
        else dataclasses.replace(row, answer=answer, benefit_gpu_s=gain_gpu_s, refusals=(("guard", code, "w"),))
        for row in run.decisions
    )
    return dataclasses.replace(run, decisions=rows)


def test_advice_names_the_guard_that_refused_much_and_its_field(run: PolicyRun) -> None:
    """With how often, how much, and the present value."""
    said, *_ = advice(
        dataclasses.replace(with_answers(run, "refused", gain_gpu_s=9e5), policy={"hysteresis.margin_ratio": "0.2"})
    )
    assert said.startswith("Code margin refused 86 decisions (43 for tenant vision) with a gain of ")
    assert "change hysteresis.margin_ratio (an expert field, now 0.2)" in said


def test_advice_follows_the_waiting_where_no_guard_refused_much(run: PolicyRun) -> None:
    """Each large reason with its queue and number. Scarcity is named as such; a reason with a remedy names it."""
    calm = with_answers(run, "refused", gain_gpu_s=0.0)
    assert advice(calm) == (
        "90.0 % of the waiting (2,500 GPU-h) was because all GPUs were in use; in queue vision 2,500 GPU-h, "
        "1,250.0 GPUs on average. No policy field changes that; more GPUs or less demand would.",
    )
    waited = {("vision", "limit"): 7200.0, ("a", "capacity"): 3600.0, ("b", "capacity"): 2400.0, ("a", "kept"): 60.0}
    first, second = advice(dataclasses.replace(calm, waited_gpu_s=waited))
    assert "Raise `limit` of that queue in the cluster file" in first
    assert "(1.67 GPU-h) was because all GPUs were in use; in queue a 1 GPU-h, 0.5 GPUs on average" in second


def test_advice_names_the_mode_of_the_action_that_would_end_the_waiting(run: PolicyRun) -> None:
    """Off: the mode and its value, in the advice and in the table of reasons. Automatic: what else would help."""
    calm = dataclasses.replace(
        with_answers(run, "refused", gain_gpu_s=0.0), waited_gpu_s={("q", "mig_geometry"): 7200.0}
    )
    off = dataclasses.replace(calm, policy={"modes.regeometry": "off"})
    assert advice(off)[0].endswith(
        "Set modes.regeometry to auto (now off), or cut more GPUs of the pool for what jobs request."
    )
    assert "modes.regeometry (off)" in told(off)
    auto = dataclasses.replace(calm, policy={"modes.regeometry": "auto"})
    assert advice(auto)[0].endswith(" GPUs on average. Cut more GPUs of the pool for what jobs request.")


def test_advice_says_so_where_nothing_stands_out(run: PolicyRun) -> None:
    """Nothing refused, nothing waited; waiting for what ends by itself; a refusal that is little beside the waiting."""
    calm = with_answers(run, "refused", gain_gpu_s=0.0)
    assert advice(dataclasses.replace(calm, waited_gpu_s={})) == (NOTHING,)
    assert advice(dataclasses.replace(calm, waited_gpu_s={("q", "delay"): 9e6})) == (NOTHING,)
    little = with_answers(run, "refused", gain_gpu_s=9e5)
    assert advice(dataclasses.replace(little, waited_gpu_s={("q", "delay"): 9e9})) == (NOTHING,)


def test_advice_speaks_of_modes_where_they_hold_most(run: PolicyRun) -> None:
    """Recommendations without effect."""
    rows = tuple(dataclasses.replace(row, answer="recommended") for row in run.decisions)
    said, *_ = advice(dataclasses.replace(run, decisions=rows))
    assert said.startswith(
        "260 of 260 decisions were not carried out because of their mode. Set modes.backfill to auto"
    )


def test_advice_puts_a_defect_first(run: PolicyRun) -> None:
    """A violated invariant makes every other figure doubtful."""
    (said,) = advice(dataclasses.replace(run, result={**run.result, "invariants": {"violated": 2}}))
    assert "report it" in said


# --- all decisions on the page ----------------------------------------------------------------------


def test_every_decision_is_in_the_page_with_its_whole_case(run: PolicyRun) -> None:
    """What is packed comes back, text by text, whatever is in it."""
    rows = (
        *run.decisions,
        dataclasses.replace(run.decisions[0], id=HOSTILE, workload=HOSTILE, case=(HOSTILE,)),
    )
    text = packed(rows)
    assert "<" not in text
    found = unpacked(text)
    assert found["id"] == [row.id for row in rows]
    strings = found["strings"]
    assert [[strings[line] for line in lines] for lines in found["case"]] == [list(row.case) for row in rows]
    assert packed(rows) == text


def test_a_huge_run_goes_on_in_pages_beside_and_loses_nothing(
    run: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every decision is on one of the pages, links lead to the right one, and pages of an older report are removed."""
    monkeypatch.setattr(embedded.parts_of, "__defaults__", (100,))
    data = make_report(("autopilot",), services=False, span_s=7200.0, nodes=2)
    (tmp_path / "decisions-9.html").write_text("old")
    (tmp_path / "decisions-mine.html").write_text("mine")
    page = write_report(data, tmp_path).read_text(encoding="utf-8")
    pages = [page, *((tmp_path / f"decisions-{n}.html").read_text(encoding="utf-8") for n in (2, 3))]
    held = [unpacked(re.findall(r'<script type="text/plain">([^<]+)<', each)[0])["id"] for each in pages]
    assert [len(ids) for ids in held] == [100, 100, 60]
    assert [each for ids in held for each in ids] == [row.id for row in data.policies[0].decisions]
    assert '<a href="decisions-2.html">Decisions 101 to 200</a>' in page
    for file, identity in re.findall(r'href="(decisions-\d+\.html)?#d-([^"]+)"', page):
        assert identity in held[int(file[10:-5]) - 1 if file else 0]
    assert not (tmp_path / "decisions-9.html").exists()
    assert (tmp_path / "decisions-mine.html").read_text() == "mine"


def test_runs_with_equal_ids_keep_their_anchors_apart(run: PolicyRun) -> None:
    """Two policies may make the same proposal; names are escaped for an address."""
    odd = dataclasses.replace(run.decisions[0], id=HOSTILE)
    one, two = parts_of([("a", (odd,)), ("b", (odd,))])
    assert (one.prefix, two.prefix) == ("d-", "d2-")
    assert re.fullmatch(r"#d-[A-Za-z0-9%._~-]+", anchor(one, odd))


# --- what is empty ----------------------------------------------------------------------------------


def test_empty_columns_and_tables_are_left_out() -> None:
    """No column of dashes, no tenant without jobs, no table of reservations that were never made."""
    data = make_report(("autopilot", "fifo-skip"))
    assert "SLO violations" in key_figures(data)
    bare = data
    for name in ("autopilot", "fifo-skip"):
        bare = with_result(bare, name, slo=None, reservations={"made": 0}, tenants={"idle": {"submitted": 0}})
    assert "SLO violations" not in key_figures(bare)
    assert reservations(bare) == ""
    assert "idle" not in tenants(bare)


def test_version_date_and_digest_stand_on_the_page() -> None:
    """Where they are given; the page itself knows no time."""
    data = make_report((), services=False)
    page = render_page(dataclasses.replace(data, version="9.8", written="2026-11-23 03:30 UTC", digest="abc123"))
    assert "gpu-autopilot 9.8 · written 2026-11-23 03:30 UTC · input abc123" in page
    assert "written" not in re.sub(r"<(style|script).*?</\1>", "", render_page(data), flags=re.DOTALL)

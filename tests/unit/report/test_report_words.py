"""What the page says in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.report.data import ReportData
from autopilot.report.page import render_page
from autopilot.report.tiles import heading, tiles
from autopilot.report.words import (
    ahead_words,
    alarms,
    fared_lines,
    headline,
    notes,
    ordered,
    pick,
    reference_of,
    subject_of,
)
from tests.kits.report_data import make_report, with_result


@pytest.fixture(scope="module")
def data() -> ReportData:
    """Three policies, services, decisions."""
    return make_report()


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "said"),
    [
        (3600.0, 7200.0, "with 50 % less waiting than fifo-skip: 1 h per job"),
        (7200.0, 6000.0, "with 20 % more waiting than fifo-skip"),
        (60000.0, 6000.0, "with 10.0 times the waiting of fifo-skip"),
        (6001.0, 6000.0, "with as much waiting as fifo-skip"),
        (0.0, 0.0, "no job waited"),
        (60.0, 0.0, "a mean wait of 60 s where fifo-skip had none"),
    ],
)
def test_the_headline_says_better_and_worse(data: ReportData, ours_s: float, theirs_s: float, said: str) -> None:
    """One sentence gives the change in waiting, whichever way it went."""
    changed = with_result(data, "autopilot", jobs={"total_wait_s_mean": ours_s})
    changed = with_result(changed, "fifo-skip", jobs={"total_wait_s_mean": theirs_s})
    assert said in headline(changed)


def test_what_is_owed_and_lost_comes_first(data: ReportData) -> None:
    """Both figures of both runs, before the wait; a shorter wait elsewhere is named with its price."""
    ours: dict[str, Any] = {"owed_gpu_s": 3600.0, "lost_gpu_s": 0.0, "total_wait_s_mean": 7200.0}
    theirs: dict[str, Any] = {"owed_gpu_s": 36000.0, "lost_gpu_s": 7200.0, "total_wait_s_mean": 3600.0}
    changed = data
    for name, found in (("autopilot", ours), ("fifo-skip", theirs)):
        changed = with_result(
            changed,
            name,
            guarantees={"owed_gpu_s": found["owed_gpu_s"]},
            disruptions={"lost_gpu_s": found["lost_gpu_s"]},
            jobs={"total_wait_s_mean": found["total_wait_s_mean"], "queue_wait_s_mean": 60.0, "queue_wait_s_p99": 60.0},
        )
    said = headline(changed)
    kept = "with 1 GPU-h of guarantee shortfall instead of 10 GPU-h and 0 GPU-h of work lost instead of 2 GPU-h"
    assert kept in said
    assert said.index(kept) < said.index("waiting")
    results = {run.name: run.result for run in changed.policies}
    assert ahead_words("fifo-skip", results["fifo-skip"], "autopilot", results["autopilot"]) == (
        "fifo-skip is ahead of autopilot: mean total wait 1 h (autopilot: 2 h). It costs: guarantee shortfall "
        "10 GPU-h (autopilot: 1 GPU-h), work lost 2 GPU-h (autopilot: 0 GPU-h)"
    )
    assert not ahead_words("autopilot", results["autopilot"], "fifo-skip", results["fifo-skip"])


def test_the_headline_has_utilization_before_and_after(data: ReportData) -> None:
    """Real utilization until the last arrival, else over the makespan, else what was useful; never half of a pair."""
    early = {"to_last_arrival": {"real_utilization_ratio": 0.401}}
    both = with_result(data, "autopilot", utilization=early)
    assert ", at a real utilization of 40.1 % instead of" not in headline(both)
    both = with_result(both, "fifo-skip", utilization={"to_last_arrival": {"real_utilization_ratio": 0.352}})
    assert headline(both).endswith(", at a real utilization of 40.1 % instead of 35.2 % until the last arrival.")
    plain = with_result(both, "fifo-skip", utilization={"to_last_arrival": None, "real_utilization_ratio": 0.3})
    plain = with_result(plain, "autopilot", utilization={"real_utilization_ratio": 0.2})
    assert headline(plain).endswith(", at a real utilization of 20.0 % instead of 30.0 %.")
    blind = with_result(plain, "fifo-skip", utilization={"real_utilization_ratio": None, "to_last_arrival_ratio": 0.5})
    blind = with_result(blind, "autopilot", utilization={"to_last_arrival_ratio": 0.6})
    assert "kept progress of 60.0 % instead of 50.0 % of the capacity until the last arrival" in headline(blind)


def test_the_headline_of_one_policy_has_its_utilization(data: ReportData) -> None:
    """The figure that a comparison would show; none where nothing was measured."""
    (run,) = [each for each in data.policies if each.name == "autopilot"]
    alone = with_result(
        replace(data, policies=(run,)), "autopilot", utilization={"to_last_arrival": {"real_utilization_ratio": 0.401}}
    )
    assert (
        "autopilot finished 3,997 of 4,000 jobs, at a real utilization of 40.1 % until the last arrival, with a mean"
        in (headline(alone))
    )
    blind = with_result(
        alone,
        "autopilot",
        utilization={"to_last_arrival": None, "real_utilization_ratio": None, "to_last_arrival_ratio": None},
    )
    assert "autopilot finished 3,997 of 4,000 jobs, with a mean total wait of" in headline(blind)


def test_jobs_that_fared_worse_are_named_on_the_page() -> None:
    """Count, by how much, and the worst ones; what was not compared is not mentioned."""
    data = make_report(("fifo-skip", "autopilot"), services=False, span_s=7200.0, nodes=2)  # quick to draw
    job = {
        "job_id": "wide-<7>",
        "tenant": "vision",
        "gpus": 32,
        "queue_wait_s": 60.0,
        "total_wait_s": 7200.0,
        "evictions": 3,
        "moves": 1,
        "lost_gpu_s": 7200.0,
        "worse_by_s": 3600.0,
        "reference_total_wait_s": 3600.0,
    }
    fared = {
        "reference": "fifo-skip",
        "compared": 3997,
        "worse": 40,
        "better": 3000,
        "unfinished": 2,
        "worse_by_s_mean": 600.0,
        "worse_by_s_max": 3600.0,
        "jobs": [job],
    }
    changed = with_result(data, "autopilot", fared_worse=fared, jobs={"longest_waits": [{**job, "job_id": "late-1"}]})
    said = (
        "40 of 3,997 jobs ended later than under fifo-skip, 3,000 earlier; the later ones by 10 min on average, "
        "at most 1 h; 2 did not end at all"
    )
    page = render_page(changed)
    assert notes(changed)[1] == f"{said}."
    assert said in page
    assert "wide-&lt;7&gt;" in page
    assert "late-1" in page
    assert fared_lines(ordered(changed)[0].result, 3) == (
        "wide-<7> (32 GPUs, vision): 1 h later, waited 2 h instead of 1 h, stopped 3 times, 1 of them to move",
    )
    assert 'id="fared"' not in render_page(data)


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "said"),
    [
        (1800.0, 3600.0, "▲ better</b>: 50 % less than under fifo-skip"),
        (3600.0, 1800.0, "▼ worse</b>: 100 % more than under fifo-skip"),
        (36000.0, 3600.0, "▼ worse</b>: 10.0 times as much as under fifo-skip"),
        (3600.0, 3650.0, '<p class="change">as under fifo-skip'),
        (60.0, 0.0, "▼ worse</b>: none under fifo-skip"),
        (None, 60.0, '<p class="change">not measured under autopilot'),
    ],
)
def test_a_tile_says_whether_it_is_better(
    data: ReportData, ours_s: float | None, theirs_s: float | None, said: str
) -> None:
    """By word, sign and amount; what differs by less than two per cent is neither better nor worse."""
    changed = with_result(data, "autopilot", jobs={"total_wait_s_mean": ours_s, "queue_wait_s_mean": None})
    changed = with_result(changed, "fifo-skip", jobs={"total_wait_s_mean": theirs_s})
    assert said in tiles(changed).split("</li>")[0]


def test_real_utilization_stands_beside_its_bound(data: ReportData) -> None:
    """36.9 % beside 36.8 % is the same. The bound is the most that any schedule of the work could reach."""
    changed = data
    for name, ratio in (("autopilot", 0.369), ("fifo-skip", 0.368)):
        changed = with_result(changed, name, utilization={"to_last_arrival": {"real_utilization_ratio": ratio}})
    shown = tiles(changed).split("<h2>Real utilization</h2>")[1]
    assert '<p class="figure">36.9 %</p><p class="change">as under fifo-skip</p>' in shown
    assert '<div class="bound"><span>bound</span><i><b style="width:100.0%"></b></i><em>55.0 %</em></div>' in shown


def test_the_heading_has_shortfall_and_loss_first_and_hides_nothing(data: ReportData) -> None:
    """What is better, then what is worse; the figures stand in the tiles."""
    changed = with_result(data, "autopilot", guarantees={"owed_gpu_s": 3600.0}, jobs={"total_wait_s_mean": 60.0})
    changed = with_result(changed, "fifo-skip", guarantees={"owed_gpu_s": 7200.0}, utilization=None)
    assert heading(changed) == (
        "autopilot beside fifo-skip: less guarantee shortfall and less waiting, but more work lost"
    )


def test_the_headline_does_not_compare_unequal_work_in_silence(data: ReportData) -> None:
    """Where one policy finished fewer jobs, the sentence names both numbers and what the mean is over."""
    said = headline(with_result(data, "autopilot", jobs={"finished": 3000}))
    assert "finished 3,000 jobs (fifo-skip: 3,997)" in said
    assert "the jobs that each of them finished" in said


def test_alarms_name_broken_invariants_and_unfinished_work(data: ReportData) -> None:
    """Warnings are below the headline; what all runs share is stated once."""
    changed = with_result(data, "autopilot", invariants={"violated": 2})
    assert "autopilot: 2 invariants violated" in alarms(changed)
    assert "every policy: 3 of 4,000 jobs did not finish, 3 of them never started" in alarms(changed)


@pytest.mark.parametrize(
    ("names", "subject", "reference"),
    [
        (("fifo", "fifo-skip", "autopilot"), "autopilot", "fifo-skip"),
        (("fifo", "night.yaml"), "night.yaml", "fifo"),
        (("easy", "sjf"), "easy", "sjf"),
    ],
)
def test_the_page_is_about_the_policy_that_is_no_textbook_order(
    names: tuple[str, ...], subject: str, reference: str
) -> None:
    """`autopilot` or a policy file is the subject, fifo-skip where it ran the reference."""
    data = make_report(names, services=False, span_s=3600.0)
    ours, theirs = subject_of(data), reference_of(data)
    assert ours is not None
    assert theirs is not None
    assert (ours.name, theirs.name) == (subject, reference)


def test_a_number_is_taken_only_where_there_is_one() -> None:
    """Null, absent, NaN, text and a path through no mapping are all unknown."""
    result = {"a": {"b": 1, "null": None, "nan": float("nan"), "text": "1"}}
    assert pick(result, "a", "b") == 1.0
    paths = (("a", "null"), ("a", "nan"), ("a", "text"), ("a", "absent"), ("a", "b", "c"), ("x",))
    assert [pick(result, *path) for path in paths] == [None] * 6


def test_an_interrupted_run_is_not_compared(data: ReportData) -> None:
    """What a policy did not come to would count as not waited for."""
    cut = with_result(data, "autopilot", interrupted=True, makespan_s=7200.0)
    assert headline(cut).startswith("Interrupted after 2 h of the run: autopilot finished ")
    assert "fifo-skip" not in headline(cut)


@pytest.mark.parametrize(
    ("stops", "moves", "said"),
    [(0, 0, "never stopped"), (1, 0, "stopped once"), (1_200, 0, "stopped 1,200 times")],
)
def test_how_often_a_job_was_stopped(data: ReportData, stops: int, moves: int, said: str) -> None:
    """A job may fare worse without being stopped: others went first."""
    job = {
        "job_id": "j",
        "tenant": "t",
        "gpus": 1,
        "total_wait_s": 60.0,
        "reference_total_wait_s": 0.0,
        "worse_by_s": 60.0,
        "evictions": stops,
        "moves": moves,
    }
    changed = with_result(data, "autopilot", fared_worse={"jobs": [job]})
    assert fared_lines(ordered(changed)[0].result, 3)[0].endswith(f"instead of 0 s, {said}")

"""What a scrape gets: the numbers of a known world, absence where nothing is known, escaped labels, bounded series."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from autopilot.controller import STAGES as CONTROLLER_STAGES
from autopilot.core.intake.signals import UNMEASURED
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.memory import Step
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.memory.halt import HaltMemory
from autopilot.core.model.records import Code, Gap, Observation, OutcomeKind, Proposal, Verdict
from autopilot.core.model.snapshot import ServiceTable, make
from autopilot.metrics.exposition import Exposition, history_text
from autopilot.metrics.samples import Samples, confidence_of
from autopilot.metrics.table import METRICS, MOST_RECOMMENDATIONS, MOST_SERIES, STAGES
from autopilot.settings import shipped_policy
from benchmarks.metrics import large_observation, large_step, series_of
from tests.kits.core_world import AUTO, decide, done, holds, observe, snapshot, waits
from tests.kits.idle_world import measured
from tests.kits.proposals import propose
from tests.kits.scraping import scrape, shown
from tests.kits.ticking_world import tenants
from tests.kits.tries import tries

NOW_S = 10_000.0
RECOMMEND = shipped_policy("recommend")


def a_world() -> Observation:
    """Two nodes: t0 holds 8 GPUs at half activity, t1 holds 4 that do nothing; t2 waits for 16."""
    queues = tenants(("q0", 0, 4), ("q1", 0, 2), ("q2", 0, 10))
    work = [
        holds("busy", 8, tenant=0, queue=1, on=range(8), start_s=0.0),
        holds("still", 4, tenant=1, queue=2, on=range(8, 12), start_s=0.0),
        waits("wide", 16, tenant=2, queue=3, submit_s=NOW_S - 700.0),
    ]
    snap = snapshot("2x8", work, queues=queues)
    lively = {row: {"sm_active_ratio": 0.5, "power_w": 300.0} for row in range(8)}
    snap = measured(snap, lively)
    table = snap.telemetry
    five_min = replace(table, windows_s=(300.0, 1800.0), sources=("dcgm",), collected_s=NOW_S - 20.0)
    return observe(replace(snap, telemetry=five_min), NOW_S)


def test_the_numbers_of_a_small_world_are_exposed() -> None:
    """Utilizations, gap, hoarding, borrowing, waiting and age, each with its labels."""
    found = shown(a_world())
    expected = {
        "fleet_capacity_gpus": 16.0,
        "fleet_held_gpus": 12.0,
        "fleet_allocation_ratio": 0.75,
        "fleet_active_gpus": 4.0,
        "fleet_gap_gpus": 8.0,
        "fleet_hardware_ratio": 4 / 12,
        "fleet_real_utilization_ratio": 0.25,
        "pool_gap_gpus{pool=pool}": 8.0,
        "tenant_held_gpus{tenant=t0}": 8.0,
        "tenant_hardware_ratio{tenant=t0}": 0.5,
        "tenant_hardware_ratio{tenant=t1}": 0.0,
        "tenant_hoarding_ratio{tenant=t0}": 0.0,
        "tenant_hoarding_ratio{tenant=t1}": 1.0,
        "queue_guaranteed_gpus{queue=q0}": 4.0,
        "queue_borrowed_gpus{queue=q0}": 4.0,
        "queue_borrowed_gpus{queue=q1}": 2.0,
        "queue_borrowed_idle_gpus{queue=q0}": 0.0,
        "queue_borrowed_idle_gpus{queue=q1}": 2.0,
        "tenant_pending_gpus{tenant=t2}": 16.0,
        "tenant_oldest_pending_seconds{tenant=t2}": 700.0,
        "pending_gpus{reason=fairness}": 16.0,
        "node_free_gpus{node=node-1,pool=pool}": 4.0,
        "largest_gang_gpus{gpu_model=A100-80GB}": 4.0,
        "telemetry_gpus{quality=sm_active}": 16.0,
        "tick_age_seconds": 5.0,
        "collector_age_seconds{collector=dcgm}": 25.0,
        "leader": 1.0,
        "kill_switch": 0.0,
        "ticks_total{result=decided}": 1.0,
        "tick_stage_duration_seconds_bucket{le=0.1,stage=whole}": 0.0,
        "tick_stage_duration_seconds_bucket{le=0.5,stage=whole}": 1.0,
        "action_mode{action=admit_gang,mode=auto}": 1.0,
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected, rel=1e-4)


def test_lost_telemetry_raises_no_figure_that_an_alert_reads() -> None:
    """Of two gangs of a tenant the busy one is no longer measured. The other one is not all that the tenant holds."""
    work = [holds("busy", 4, start_s=0.0), holds("still", 4, start_s=0.0)]
    lively = {row: {"sm_active_ratio": 0.5, "power_w": 300.0} for row in range(4)}
    whole = measured(snapshot("1x8", work), lively)
    whole = replace(whole, telemetry=replace(whole.telemetry, windows_s=(300.0, 1800.0)))
    mean, maximum = whole.telemetry.mean.copy(), whole.telemetry.maximum.copy()
    mean[:, :, :4] = maximum[:, :, :4] = np.nan
    dark = replace(whole, telemetry=replace(whole.telemetry, mean=mean, maximum=maximum))
    before, after = (shown(observe(each, NOW_S)) for each in (whole, dark))
    for name, values in {
        "tenant_hoarding_ratio{tenant=t0}": (0.5, 0.5),
        "fleet_measured_ratio": (1.0, 0.5),
        "tenant_measured_ratio{tenant=t0}": (1.0, 0.5),
        "tenant_hardware_ratio{tenant=t0}": (0.25, 0.0),
        "fleet_real_utilization_ratio": (0.25, 0.0),
        "fleet_gap_gpus": (6.0, 4.0),
    }.items():
        assert (before[name], after[name]) == values, name


def test_what_is_not_measured_has_no_sample() -> None:
    """Without telemetry and mix there is an allocation, and no activity, gap, hoarding or fragmentation index."""
    observation = observe(snapshot("1x8", [holds("a", 4)]), NOW_S)
    found = shown(observation)
    assert found["fleet_allocation_ratio"] == 0.5
    absent = ("hardware", "gap_gpus", "real_utilization", "hoarding", "active_gpus", "fragmentation", "borrowed_idle")
    assert not [name for name in found if any(each in name for each in absent)]
    assert found["telemetry_gpus{quality=none}"] == 8.0
    assert "tenant_oldest_pending_seconds{tenant=t0}" not in found


def test_a_tick_without_a_view_shows_nothing_of_the_cluster() -> None:
    """The snapshot of such a tick is evidence of nothing; the state of the controller is still shown."""
    blind = replace(a_world(), signals=UNMEASURED)
    step = decide(blind)
    step = replace(step, decision=replace(step.decision, halted="no source shows nodes and GPUs"))
    found = shown(blind, step)
    about = ("fleet", "pool", "tenant", "queue", "node", "pending", "service", "telemetry", "stranded", "largest")
    assert not [name for name in found if name.startswith(about)]
    assert found["ticks_total{result=halted}"] == 1.0
    assert found["kill_switch"] == 0.0


def test_only_the_leader_shows_the_cluster() -> None:
    """A process that does not lead shows that, and the age of its own data."""
    observation = a_world()
    step = decide(observation)
    exposition = Exposition(None, "1")
    exposition.tick(observation, step.decision, step.memory, AUTO)
    found = scrape(exposition.render(NOW_S, leads=False, ages=(0.0, {"dcgm": 3.0})))
    assert found["leader"] == 0.0
    assert found["collector_age_seconds{collector=dcgm}"] == 3.0
    assert not [name for name in found if name.startswith(("fleet", "tenant", "recommendation", "kill"))]
    assert scrape(Exposition(None, "1").render(0.0))["leader"] == 1.0, "before the first tick"


def test_the_kill_switch_and_pauses_are_shown() -> None:
    """The switch counts from the observation and from memory; a pause names who made it."""
    observation = a_world()
    assert shown(replace(observation, kill_switch=True))["kill_switch"] == 1.0
    step = decide(observation)
    assert shown(observation)["policy_problem"] == 0.0
    killed = replace(step, memory=replace(step.memory, halt=HaltMemory(killed=True)))
    assert shown(observation, killed)["kill_switch"] == 1.0
    paused = replace(step, memory=replace(step.memory, halt=HaltMemory(paused_reason="maintenance", paused_by="ada")))
    assert shown(observation, paused)["paused{by=person}"] == 1.0
    assert shown(observation, paused)["paused{by=autopilot}"] == 0.0


def test_daily_spending_is_shown_where_it_is_known() -> None:
    """Also after a tick without a view: it is about the day before. Without history there is no series."""
    blind = replace(a_world(), signals=UNMEASURED)
    step = decide(blind)
    exposition = Exposition(None, "1")
    spent, planned = {"vision": 1.5}, {"vision": 1.2}
    exposition.tick(blind, step.decision, step.memory, AUTO, spend_ratios=spent, budget_ratios=planned)
    assert scrape(exposition.render(NOW_S))["tenant_daily_spend_ratio{tenant=vision}"] == 1.5
    assert scrape(exposition.render(NOW_S))["tenant_budget_ratio{tenant=vision}"] == 1.2
    exposition.tick(blind, step.decision, step.memory, AUTO)
    assert not [name for name in scrape(exposition.render(NOW_S)) if name.startswith("tenant_daily")]


def test_work_that_waits_for_its_owner_is_not_starving() -> None:
    """Work that opted out counts as pending and has no age; the oldest other work has."""
    queues = tenants(("q0", 0, 4))
    work = [
        waits("apart", 1, queue=1, submit_s=10.0, excluded=True),
        holds("full", 16, queue=1),
        waits("next", 8, queue=1, submit_s=NOW_S - 60.0),
    ]
    found = shown(observe(snapshot("2x8", work, queues=queues), NOW_S))
    assert found["pending_workloads{reason=excluded}"] == 1.0
    assert found["tenant_pending_gpus{tenant=t0}"] == 9.0
    assert found["tenant_oldest_pending_seconds{tenant=t0}"] == 60.0


def test_services_show_their_late_requests_and_replicas() -> None:
    """A service without requests has no late ones; unknown needs have no sample."""
    table = make(
        ServiceTable,
        id=["chat", "idle", "new"],
        uid=["a", "b", "c"],
        recent_rps=[10.0, 0.0, np.nan],
        recent_violation_ratio=[0.02, np.nan, np.nan],
        p99_s=[1.5, np.nan, np.nan],
        objective_s=[2.0, 2.0, 2.0],
        ready_replicas=[3, 1, 0],
        needed_replicas=[4, -1, -1],
    )
    found = shown(observe(replace(snapshot("1x8"), services=table), NOW_S))
    assert found["service_late_requests_per_second{service=chat}"] == pytest.approx(0.2)
    assert found["service_late_requests_per_second{service=idle}"] == 0.0
    assert "service_late_requests_per_second{service=new}" not in found
    assert found["service_replicas{service=chat,state=needed}"] == 4.0
    assert "service_replicas{service=idle,state=needed}" not in found


# --- recommendations and counters -----------------------------------------------------------------


def with_proposals(step: Step, *found: Proposal) -> Step:
    """The step with exactly these proposals."""
    return replace(step, decision=replace(step.decision, plan=replace(step.decision.plan, proposals=found)))


def held_by_mode(name: str, gain_gpu_s: float, code: Code = Code.MODE_RECOMMEND) -> Proposal:
    """A proposal that only its mode holds."""
    verdict = Verdict("mode", False, code, 0.0, "", 0.0)
    return propose("evict", "preempt", name, benefit_gpu_s=gain_gpu_s, cost_gpu_s=5.0, verdicts=(verdict,))


def test_recommendations_are_shown_until_they_are_closed() -> None:
    """Gain, cost, mode and confidence; after the tick without it, the series is gone."""
    observation = a_world()
    step = decide(observation)
    exposition = Exposition(None, "1")
    opened = with_proposals(step, held_by_mode("w", 3600.0))
    exposition.tick(observation, opened.decision, opened.memory, RECOMMEND)
    found = scrape(exposition.render(NOW_S))
    info = [name for name in found if name.startswith("recommendation_info")]
    assert info == [
        "recommendation_info{action=preempt,confidence=measured,id=preempt-w-41de659a,kind=evict,mode=recommend,reason=evict,"
        "target=w,tenant=t}"
    ]
    assert found["recommendation_gain_gpu_seconds{id=preempt-w-41de659a}"] == 3600.0
    assert found["recommendation_cost_gpu_seconds{id=preempt-w-41de659a}"] == 5.0
    assert found["recommendations{action=preempt}"] == 1.0
    closed = with_proposals(step)
    exposition.tick(observation, closed.decision, closed.memory, RECOMMEND)
    found = scrape(exposition.render(NOW_S))
    assert not [name for name in found if name.startswith("recommendation_")]
    assert found["recommendations{action=preempt}"] == 0.0


def test_the_largest_gains_have_series_of_their_own() -> None:
    """More recommendations than the bound are counted, and the smallest gains are left out."""
    step = decide(a_world())
    many = with_proposals(step, *(held_by_mode(f"w{number}", float(number)) for number in range(60)))
    found = shown(a_world(), many)
    gains = [value for name, value in found.items() if name.startswith("recommendation_gain")]
    assert len(gains) == MOST_RECOMMENDATIONS
    assert min(gains) == 10.0
    assert found["recommendations{action=preempt}"] == 60.0


def test_the_confidence_of_a_proposal_is_that_of_its_forecast() -> None:
    """Without a forecast it is measured; a forecast is proven, or named with what is wrong with it."""
    none = Verdict("confidence", True, Code.OK, 0.0, "forecasts relied on", 0.0)
    good = replace(none, unit="of the outcomes within the promise")
    bad = replace(good, allowed=False, code=Code.FORECAST_DRIFTING)
    words = [confidence_of(propose("scale", verdicts=(each,))) for each in (none, good, bad)]
    assert words == ["measured", "forecast_proven", "forecast_drifting"]


def test_decisions_refusals_and_disruptions_are_counted() -> None:
    """Answers by action, refusing verdicts by guard and code; counters grow from tick to tick."""
    observation = a_world()
    step = with_proposals(decide(observation), held_by_mode("w", 1.0))
    entries = tuple(Disruption(NOW_S, "w", "t", (), False, uid=uid) for uid in ("a", "b", "a"))
    step = replace(step, memory=replace(step.memory, budget=replace(step.memory.budget, disrupted=entries)))
    exposition = Exposition(None, "1")
    for _ in range(2):
        exposition.tick(observation, step.decision, step.memory, RECOMMEND)
    found = scrape(exposition.render(NOW_S))
    assert found["decisions_total{action=preempt,answer=recommended}"] == 2.0
    assert found["refusals_total{code=mode_recommend,guard=mode}"] == 2.0
    assert found["most_stops_of_one_workload"] == 2.0


def test_counters_of_effects_are_there_from_the_start() -> None:
    """A known 0: the first failure is an increase, not a new series."""
    found = shown(a_world())
    assert found["effects_total{operation=admit,result=failed}"] == 0.0
    assert found["lost_gpu_seconds_total"] == 0.0
    assert found["disruptions_total{contract=false}"] == 0.0
    assert found["effects_in_flight{operation=evict,state=issued}"] == 0.0


@pytest.mark.parametrize(
    ("kind", "result"), [(OutcomeKind.DONE, "done"), (OutcomeKind.CONFLICT, "conflict"), (OutcomeKind.FAILED, "failed")]
)
def test_effects_are_counted_with_their_result_and_duration(kind: OutcomeKind, result: str) -> None:
    """An effect in flight is shown with its state; when it ends, its result and its time since the instruction."""
    first = observe(snapshot("1x8", [waits("a", 8)]), 0.0, tick=1)
    step = decide(first)
    exposition = Exposition(None, "1")
    exposition.tick(first, step.decision, step.memory, AUTO)
    assert scrape(exposition.render(0.0))["effects_in_flight{operation=admit,state=issued}"] == 1.0
    outcomes = done(step.instructions, 20.0, kind)
    work = [holds("a", 8, incarnation=0, start_s=10.0)] if kind == OutcomeKind.DONE else [waits("a", 8)]
    second = observe(snapshot("1x8", work), 20.0, tick=2, outcomes=outcomes)
    after = decide(second, memory=step.memory)
    exposition.tick(second, after.decision, after.memory, AUTO)
    found = scrape(exposition.render(20.0))
    assert found[f"effects_total{{operation=admit,result={result}}}"] == 1.0
    assert found["effect_duration_seconds_sum{operation=admit}"] == 20.0
    assert found["effect_duration_seconds_bucket{le=30,operation=admit}"] == 1.0
    assert found["effect_duration_seconds_bucket{le=10,operation=admit}"] == 0.0


WAITING = st.tuples(st.integers(0, 2), st.integers(1, 8), st.integers(0, 9_000), st.sampled_from([0, 250]))


@given(st.lists(WAITING, max_size=6))
@settings(max_examples=tries(10, 300))
def test_each_tenant_waits_with_its_own_work(rows: list[tuple[int, int, int, int]]) -> None:
    """GPUs that a tenant waits for, and since when; a tenant without work has no series."""
    work = [
        waits(f"w{number}", 1 if milli else gpus, tenant=tenant, queue=1, submit_s=float(submit_s), gpu_milli=milli)
        for number, (tenant, gpus, submit_s, milli) in enumerate(rows)
    ]
    found = shown(observe(snapshot("1x8", work, queues=tenants(("q", 0, 8))), NOW_S))
    for tenant in range(3):
        own = [row for row in rows if row[0] == tenant]
        gpus = sum(milli / 1000 if milli else gpus for _, gpus, _, milli in own) if own else None
        oldest_s = NOW_S - min(submit_s for _, _, submit_s, _ in own) if own else None
        assert found.get(f"tenant_pending_gpus{{tenant=t{tenant}}}") == gpus
        assert found.get(f"tenant_oldest_pending_seconds{{tenant=t{tenant}}}") == oldest_s


# --- hostile names, size, threads -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ['quo"te', "new\nline", "back\\slash", "<b>markup</b>", "{{ .Template }}", "$(sh)", ""]
)
def test_any_name_survives_as_a_label(name: str) -> None:
    """Quotes, newlines, markup and templates reach the reader unchanged."""
    observation = observe(snapshot("1x8", [holds("a", 2)], tenants=(name, "t1", "t2")), NOW_S)
    text = Exposition(None, "1")
    step = decide(observation)
    text.tick(observation, step.decision, step.memory, AUTO)
    families = text_string_to_metric_families(text.render(NOW_S).decode())
    labels = [s.labels["tenant"] for f in families for s in f.samples if s.name == "gpu_autopilot_tenant_held_gpus"]
    assert labels == [name]


def test_a_broken_character_does_not_lose_the_scrape() -> None:
    """A lone surrogate becomes `?`."""
    observation = observe(snapshot("1x8", [holds("a", 2)], tenants=("a\ud800b", "t1", "t2")), NOW_S)
    assert shown(observation)["tenant_held_gpus{tenant=a?b}"] == 2.0


def test_a_metric_outside_of_the_table_is_refused() -> None:
    """A name or a number of labels that the table does not have is a defect."""
    for name, labels in (("unheard_of", ()), ("leader", ("x",)), ("tenant_held_gpus", ())):
        with pytest.raises(InvariantError):
            Samples().put(name, 1.0, *labels)


def test_a_large_cluster_stays_below_the_bound() -> None:
    """4,000 GPUs, 300 tenants, 30 services: fewer than 5,000 series, and no metric above its own bound."""
    observation = large_observation()
    step = large_step(observation)
    exposition = Exposition(None, "1")
    exposition.tick(observation, step.decision, step.memory, RECOMMEND, {"whole": 1.0})
    text = exposition.render(observation.now_s)
    assert 3000 < series_of(text) < MOST_SERIES
    lines = [line.split(b"{")[0].decode() for line in text.splitlines() if not line.startswith(b"#")]
    for metric in METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        count = sum(lines.count(metric.full_name + end) for end in ends)
        assert count <= metric.bound, metric.full_name


def test_the_bounds_of_all_metrics_stay_below_the_limit() -> None:
    """The sum of the bounds is below 5,000, with room for metrics to come."""
    assert sum(metric.bound for metric in METRICS) <= MOST_SERIES - 200


def test_the_stages_are_those_of_the_controller() -> None:
    """A stage that the controller enters is in the table."""
    assert (*CONTROLLER_STAGES, "whole") == STAGES


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Counters end in _total, units are base units at the end of the name, and names are unique."""
    units = {"GPUs": "_gpus", "ratio": "_ratio", "s": "_seconds", "GPU-s": "_gpu_seconds", "1/s": "_per_second"}
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.removesuffix("_total").endswith(units.get(metric.unit, "")), metric.name
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_scrapes_beside_ticks_are_consistent() -> None:
    """Scrapes from another thread never fail, and show whole ticks."""
    observation = a_world()
    step = with_proposals(decide(observation), held_by_mode("w", 1.0))
    exposition = Exposition(None, "1")
    problems: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            found = scrape(exposition.render(NOW_S))
            ticks = found.get("ticks_total{result=decided}", 0.0)
            if found.get("decisions_total{action=preempt,answer=recommended}", 0.0) != ticks:
                problems.append(f"{ticks} ticks")

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        exposition.tick(observation, step.decision, step.memory, RECOMMEND)
    stop.set()
    reader.join()
    assert not problems


def test_a_history_closes_and_keeps_its_times() -> None:
    """Samples of several moments in one OpenMetrics text, each with its time."""
    observation = a_world()
    step = decide(observation)
    exposition = Exposition(None, "1")
    exposition.tick(observation, step.decision, step.memory, AUTO)
    text = history_text([(at_s, *exposition.samples(NOW_S)) for at_s in (100.0, 160.5)]).decode()
    assert text.endswith("# EOF\n")
    lines = [line for line in text.splitlines() if line.startswith("gpu_autopilot_leader ")]
    assert lines == ["gpu_autopilot_leader 1.0 100.0", "gpu_autopilot_leader 1.0 160.5"]


def test_gaps_are_counted_by_their_source() -> None:
    """Each collector with the values that it lacks."""
    gaps = (Gap("dcgm", "node-1", "", "down"), Gap("dcgm", "node-2", "", "down"), Gap("kube", "", "", "x"))
    found = shown(replace(a_world(), gaps=gaps))
    assert found["collector_gaps{collector=dcgm}"] == 2.0
    assert found["collector_gaps{collector=kube}"] == 1.0


def test_a_halted_tick_recommends_nothing_and_names_the_halt() -> None:
    """Pending work waits because of the halt, not for capacity."""
    observation = a_world()
    step = decide(replace(observation, kill_switch=True))
    found = shown(observation, step)
    assert found["pending_workloads{reason=halted}"] == 1.0
    assert not [name for name in found if name.startswith("recommendation")]

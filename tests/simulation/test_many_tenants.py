"""The scenarios of many tenants under the shipped policy: each stays lawful, all work ends, and each does what it is
about.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ClusterSnapshot, State
from benchmarks.reclaim_storm import RETURN_S, play, restored_s, storm
from simulator.running.accounting import gpu_s
from simulator.scenarios import SHIPPED
from tests.simulation.kit import AUTOPILOT, Ran, Setup, run, scenario

SMALLER = {
    "reclaim-storm": {},
    "gang-deadlock": {},
    "spot-cascade": {},
    "flood": {
        "count: 10000": "count: 240",
        "horizon: 4h": "horizon: 2h",
        "to: 4h": "to: 2h",
        "count: 30": "count: 15",
    },
    "no-checkpoint": {},
    "liar": {
        "horizon: 6h": "horizon: 3h",
        "to: 5h": "to: 2h30m",
        "count: 40": "count: 20",
        "count: 6": "count: 3",
    },
}
"""The scenarios of this file, and what a test makes smaller in each."""
BOUND_S = AUTOPILOT.preemption.grace_s + 10.0
"""One grace and two ticks of 5 s."""
HOUR_S = 3600.0


def text(name: str) -> str:
    """A shipped scenario as YAML, made smaller."""
    words = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
    for was, now in SMALLER[name].items():
        assert was in words, f"{name}: {was}"
        words = words.replace(was, now)
    return words


@cache
def played(name: str) -> Ran:
    """One run of a scenario under the shipped policy."""
    with tempfile.TemporaryDirectory() as folder:
        return run(scenario(text(name), Path(folder), seed=1), Setup(telemetry="off"))


def jobs_of(ran: Ran, tenant: str) -> list[int]:
    """Rows of a tenant's jobs."""
    jobs = ran.cluster.jobs
    return [job for job in range(len(jobs)) if jobs.tenants[jobs.tenant[job]] == tenant]


def waits_s(ran: Ran, tenant: str) -> list[float]:
    """Time to the first start of each of its jobs."""
    return [ran.cluster.first_start_s[job] - ran.cluster.jobs.submit_s[job] for job in jobs_of(ran, tenant)]


def spans(ran: Ran) -> Iterator[tuple[Observation, float]]:
    """What was seen at each tick, and how long it stayed so."""
    moments = ran.tape.moments
    for this, following in pairwise(moments):
        if following.observation.now_s > this.observation.now_s:
            yield this.observation, following.observation.now_s - this.observation.now_s


def held_gpus(snapshot: ClusterSnapshot, tenant: str) -> int:
    """Whole GPUs that a tenant holds."""
    code = snapshot.names.tenants.index(tenant)
    return int((snapshot.workloads.tenant[snapshot.placements.workload] == code).sum())


def waits(snapshot: ClusterSnapshot, tenant: str) -> bool:
    """Whether any of its work is pending."""
    work = snapshot.workloads
    return bool(((work.tenant == snapshot.names.tenants.index(tenant)) & (work.state == State.PENDING)).any())


@pytest.mark.parametrize("name", SMALLER)
def test_it_is_lawful_and_all_work_ends(name: str) -> None:
    """No invariant is violated, every job ends, and GPU time adds up by tenant."""
    ran = played(name)
    assert ran.simulated.found.violations == ()
    assert ran.simulated.run.complete, ran.simulated.run.stuck
    assert set(ran.cluster.state) == {int(State.SUCCEEDED)}
    totals = ran.simulated.totals
    assert totals.capacity == totals.all.allocated + totals.idle
    assert all(each.allocated == each.useful + each.lost + each.overhead for each in totals.by_tenant)


# --- reclaim storm ----------------------------------------------------------------------------------------


OWNERS = ("vision", "speech", "language", "search", "maps", "robots")


def test_after_the_storm_every_owner_has_its_guarantee_in_time() -> None:
    """A tenant that lent all of its guarantee has it back within one grace and two ticks, and is not disturbed
    again.
    """
    ran = played("reclaim-storm")
    back_s = {owner: max(waits_s(ran, owner)) for owner in OWNERS}
    assert max(back_s.values()) <= BOUND_S, back_s
    before = [
        held_gpus(seen.snapshot, guest)
        for seen, _ in spans(ran)
        if seen.now_s < 2 * HOUR_S
        for guest in ("guest", "lab")
    ]
    assert max(before) > 30


def test_the_storm_says_what_was_lost_and_why() -> None:
    """Many checkpoints at once do not fit the store: what that costs stands apart from what no checkpoint could
    save.
    """
    ran = played("reclaim-storm")
    lost, no_bandwidth = ran.simulated.totals.all.lost, ran.simulated.accounts.lost_no_bandwidth
    assert 0 < no_bandwidth <= lost
    guests = [row for row, name in enumerate(ran.cluster.jobs.tenants) if name in ("guest", "lab")]
    by_guests = sum(ran.simulated.totals.by_tenant[row].lost for row in guests)
    assert by_guests >= no_bandwidth
    assert ran.simulated.accounts.resizes > 0  # elastic gangs gave members, and had them back


@pytest.mark.parametrize("seed", [1, 2])
def test_a_larger_storm_drawn_at_random(seed: int) -> None:
    """160 GPUs, 18 tenants: the world of the benchmark, smaller."""
    simulated, clock = play(storm(20, 18, seed), "autopilot")
    back_s = restored_s(simulated)
    assert len(back_s) == 15
    assert max(back_s.values()) <= BOUND_S, back_s
    assert simulated.found.violations == ()
    assert any(now_s >= RETURN_S for now_s, _, _ in clock.ticks)


# --- gang deadlock ----------------------------------------------------------------------------------------


def test_neither_gang_holds_a_part_and_both_run() -> None:
    """Two gangs of 40 of 64 GPUs: at every tick each has all or nothing, and the second follows the first."""
    ran = played("gang-deadlock")
    widths = {(held_gpus(seen.snapshot, "east"), held_gpus(seen.snapshot, "west")) for seen, _ in spans(ran)}
    assert widths == {(0, 0), (40, 0), (0, 40)}
    (east,), (west,) = jobs_of(ran, "east"), jobs_of(ran, "west")
    starts_s = sorted((ran.cluster.first_start_s[east], ran.cluster.first_start_s[west]))
    assert starts_s[0] - 900.0 <= 20 * 60.0
    assert starts_s[1] - starts_s[0] <= 2 * 45 * 60.0
    assert sum(ran.cluster.evictions[job] for job in (east, west)) <= 2


# --- spot cascade -----------------------------------------------------------------------------------------


def test_a_fifth_of_the_nodes_goes_at_once_and_everything_runs_again() -> None:
    """From the notice on nothing new starts there; what ran there is requeued whole, and loses no more than it must."""
    ran = played("spot-cascade")
    snapshots = [seen.snapshot for seen, _ in spans(ran) if HOUR_S <= seen.now_s < HOUR_S + 120.0]
    spot = np.flatnonzero(snapshots[0].nodes.spot)
    assert len(spot) == 2
    announced_s = snapshots[0].nodes.reclaim_at_s
    assert announced_s[spot].tolist() == [HOUR_S + 120.0] * 2
    assert np.isnan(np.delete(announced_s, spot)).all()
    there = [
        set(snapshot.workloads.id[snapshot.placements.workload[np.isin(snapshot.placements.node, spot)]])
        for snapshot in snapshots
    ]
    assert there[0]
    assert all(later <= there[0] for later in there)
    hit = [job for job in range(len(ran.cluster.jobs)) if ran.cluster.jobs.id[job] in there[0]]
    assert all(ran.cluster.evictions[job] >= 1 for job in hit if ran.cluster.end_s[job] > HOUR_S + 120.0)
    most_s = 1800.0  # between two periodic checkpoints
    widths = sum(ran.cluster.jobs.gpus[job] for job in hit)
    assert gpu_s(ran.simulated.totals.all.lost) <= most_s * (widths + 16 * ran.simulated.accounts.preemptions)


# --- flood ------------------------------------------------------------------------------------------------


FLOODED_SEARCH_S = 1487.3
"""Mean wait of `search` in the smaller flood under fifo-skip; the test below holds it equal to the run."""


def test_the_others_hardly_notice_the_flood() -> None:
    """Most of their jobs wait a fraction of what they wait where the first come are first served; the flood pays
    little for it.
    """
    ran = played("flood")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flood.yaml"
        path.write_text(text("flood"), encoding="utf-8")
        usual = simulate(SimulateOptions(scenario=str(path), policies=("fifo-skip",), seed=1, series=False)).document()
    before = {name: entry["queue_wait_s_mean"] for name, entry in usual["policies"]["fifo-skip"]["tenants"].items()}
    assert before["search"] == pytest.approx(FLOODED_SEARCH_S, rel=1e-3)
    for tenant in ("vision", "speech"):  # within their guarantees
        assert np.mean(waits_s(ran, tenant)) < 0.1 * before[tenant], (tenant, before)
    assert np.mean(waits_s(ran, "search")) < before["search"]  # by its weight alone
    assert np.mean(waits_s(ran, "sweep")) < 1.5 * before["sweep"]


def test_who_has_a_weight_alone_hardly_notices_the_flood_either() -> None:
    """The usual wait of a tenant without a guarantee is a fifth of the mean where the first come are first served."""
    assert np.median(waits_s(played("flood"), "search")) < 0.2 * FLOODED_SEARCH_S


# --- no checkpoint ----------------------------------------------------------------------------------------


def test_who_never_saves_loses_all_and_who_saves_loses_little() -> None:
    """An eviction costs the one at most ten minutes of its width, the other everything; its owners have theirs in
    time.
    """
    ran = played("no-checkpoint")
    jobs, totals = ran.cluster.jobs, ran.simulated.totals
    lost = dict(zip(jobs.tenants, (gpu_s(each.lost) for each in totals.by_tenant), strict=True))
    stops = {name: sum(ran.cluster.evictions[job] for job in jobs_of(ran, name)) for name in ("saver", "never")}
    assert min(stops.values()) > 0
    assert lost["saver"] <= 600.0 * 4 * stops["saver"]
    assert lost["never"] / stops["never"] > lost["saver"] / stops["saver"]
    assert lost["vision"] == lost["language"] == 0.0


# --- liar -------------------------------------------------------------------------------------------------


def test_nobody_gets_more_of_the_cluster_by_lying_about_wall_time() -> None:
    """While all three wait, each holds about the same, whatever it declares; and work that outlives its word still
    ends.
    """
    ran = played("liar")
    names = ("honest", "short", "long")
    held, waited_s = dict.fromkeys(names, 0.0), 0.0
    for seen, span_s in spans(ran):
        if all(waits(seen.snapshot, name) for name in names):
            waited_s += span_s
            for name in names:
                held[name] += span_s * held_gpus(seen.snapshot, name)
    assert waited_s > 1800.0
    assert max(held.values()) <= 1.4 * min(held.values()), held
    outlived = [
        job for job in jobs_of(ran, "short") if ran.cluster.jobs.limit_s[job] < ran.cluster.jobs.duration_s[job]
    ]
    assert len(outlived) == len(jobs_of(ran, "short"))
    assert max(ran.cluster.end_s) < inf

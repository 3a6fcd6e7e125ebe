"""Everything goes wrong for a while, then nothing: first safety, then liveness, at many seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autopilot.core.model.snapshot import State
from autopilot.records.replay import replay
from simulator.checkers import CHECKERS
from tests.kits.tries import tries
from tests.simulation.kit import Ran, Setup, faulty_policy, faulty_world, run

STILL_S = (0.0, 1.0, 299.0, 301.0, 3600.0, 86_400.0, 604_800.0)
"""How long after the end the controller is asked again."""

HORIZON_MIN = tries(40, soak=90)
"""How long work comes and faults happen."""

FIRST = 3
"""The first seed: every kind of fault happens in it."""

MET: dict[int, Counter[str]] = {}
"""What the runs of this process met, by seed."""


@pytest.mark.seeds(500)
def test_a_faulty_run_is_safe_lively_and_replays(soak_seed: int, tmp_path: Path) -> None:
    """No invariant is violated, every job ends or is explained, and the journal decides the same again."""
    seed = FIRST + soak_seed
    world = faulty_world(seed, tmp_path, horizon_min=HORIZON_MIN)
    ran = run(world, Setup(policy=faulty_policy(seed), journal=tmp_path / "run.journal"))
    assert ran.simulated.found.violations == ()
    assert ran.simulated.found.checked > len(CHECKERS)
    assert ran.simulated.run.stuck == ""
    assert ran.simulated.run.complete
    ended_or_explained(ran)
    conserved(ran)
    MET[seed] = counted(ran)
    nothing_moves_any_more(ran)
    ran.close()
    again = replay(tmp_path / "run.journal")
    assert again.identical, again
    assert again.ticks == len(ran.tape.moments)


def ended_or_explained(ran: Ran) -> None:
    """Every job is done, or no cluster of this size could ever run it and the last decision says why it waits."""
    cluster, impossible = ran.cluster, ran.simulated.run.never_fits
    left = [
        job for job, state in enumerate(cluster.state) if state != State.SUCCEEDED and cluster.jobs.service[job] < 0
    ]
    assert left == sorted(impossible)
    last = ran.tape.moments[-1]
    refusals, work = last.decision.plan.refusals, last.observation.snapshot.workloads
    said = dict(zip(work.id[refusals.workload].tolist(), refusals.code.tolist(), strict=True))
    for job in left:
        assert impossible[job]
        assert refusals.codes[said[cluster.jobs.id[job]]] in {
            "capacity",
            "fragmented",
            "topology",
            "too_wide",
        }


def conserved(ran: Ran) -> None:
    """GPU time adds up in integers: capacity is allocated or idle, allocated is useful, lost or overhead."""
    totals = ran.simulated.totals
    assert totals.capacity == totals.all.allocated + totals.idle
    for share in (totals.all, *totals.by_tenant):
        assert share.allocated == share.useful + share.lost + share.overhead
        assert min(share.useful, share.lost, share.overhead) >= 0
    assert totals.idle >= 0


def nothing_moves_any_more(ran: Ran) -> None:
    """After the last work the controller wants nothing, however long it is asked."""
    assert not ran.controller.memory.effects.in_flight
    assert not ran.controller.memory.plan.reservations
    for later_s in STILL_S:
        step = ran.controller.tick(ran.simulated.run.end_s + later_s)
        assert step is not None
        assert step.instructions == ()
        assert [proposal.id for proposal in step.decision.plan.proposals] == []


def counted(ran: Ran) -> Counter[str]:
    """What a faulty run met."""
    met = Counter(faults=ran.simulated.accounts.faults, reserved=ran.tape.made)
    for moment in ran.tape.moments:
        met["blind"] += "is not complete" in moment.decision.halted
        met["retried"] += sum(outcome.retryable for outcome in moment.observation.outcomes)
        met["waits"] += len(moment.decision.plan.refusals.workload)
        met["backfilled"] += sum(p.action == "backfill" and p.accepted for p in moment.decision.plan.proposals)
    return met


def test_the_faults_were_met(tmp_path: Path) -> None:
    """In the first seed nodes and GPUs fail, effects fail and are tried again, gangs are cut off and run again, lists
    do not come.
    """
    if FIRST not in MET:
        world = faulty_world(FIRST, tmp_path, horizon_min=HORIZON_MIN)
        MET[FIRST] = counted(run(world, Setup(policy=faulty_policy(FIRST))))
    met = +MET[FIRST]
    assert met.keys() == {"faults", "waits", "retried", "reserved", "backfilled", "blind"}, met

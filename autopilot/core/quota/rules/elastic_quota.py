"""Elastic quotas: each team has a minimum and a maximum, and may use the unused minimum of other teams.

A team is a queue directly below the root, with all queues below it. Its minimum is its guarantee, its maximum its
limit. Work in the root itself belongs to no team and has no quota; it preempts only other work in the root. A gang may
start if its team stays within the maximum and all teams together within the sum of all minima. A team is entitled to a
part of the unused minimum of the others: that unused minimum times its own minimum over the sum of all minima.

A team that stays within its minimum may preempt work marked `over_quota` of teams above their minimum. A team that
stays within its minimum plus its part may preempt such work of teams above their minimum plus part, and then work of
lower priority of its own. Otherwise a team preempts only work of lower priority of its own. In each case the lowest
priority comes first, then the youngest gang. The rules are those of nos
(pkg/scheduler/plugins/capacityscheduling).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from autopilot.core.model.records import Code
from autopilot.core.quota.ledger import EPSILON, QuotaLedger
from autopilot.core.quota.rules.base import Claim, Fits, Refusal, Target
from autopilot.core.quota.rules.cohort import victim_order
from autopilot.core.quota.rules.trial import Limits, Trial

NAME = "elastic-quota"


class Teams:
    """The use of each team, including the newcomer: a `Ledger`. Numbers are [kind][team]; 0 is no team."""

    def __init__(self, ledger: QuotaLedger, claim: Claim) -> None:
        self.claim = claim
        self.team_of = [path[-1] if path else 0 for path in ledger.paths]
        self.team = self.team_of[claim.queue]
        self.limits = Limits(ledger, claim)
        teams = ledger.children[0]
        self._minimum = {kind: {team: ledger.guarantee[kind][team] for team in teams} for kind in claim.kinds}
        self._used = {kind: {team: ledger.use[kind][team] for team in teams} for kind in claim.kinds}
        self._part = {kind: _parts(self._minimum[kind], self._used[kind]) for kind in claim.kinds}
        self._idle = {kind: _left(ledger, kind) for kind in claim.kinds}
        self.free_gpus = min(self._idle.values()) if self.team else inf
        self._add(self.team, claim.gpus, claim.kinds)

    def book(self, other: Claim, sign: int) -> None:
        """Remove a running gang (-1) or put it back (+1)."""
        self.limits.book(other, sign)
        self._add(self.team_of[other.queue], sign * other.gpus, other.kinds)

    def allows(self) -> bool:
        """True if the newcomer's team is within its maximum, and all teams together within the sum of all minima."""
        pooled = not self.team or all(left >= -EPSILON for left in self._idle.values())
        return pooled and self.limits.allow()

    def within(self, team: int, *, part: bool) -> bool:
        """True if a team is within its minimum; with `part`, plus its part of the unused minimum of the others."""
        return all(
            self._used[kind][team] <= minimum[team] + (self._part[kind][team] if part else 0.0) + EPSILON
            for kind, minimum in self._minimum.items()
        )

    def _add(self, team: int, gpus: float, kinds: Sequence[int]) -> None:
        for kind in kinds:
            if team and kind in self._used:
                self._used[kind][team] += gpus
                self._idle[kind] -= gpus


def _left(ledger: QuotaLedger, kind: int) -> float:
    """The part of the sum of all minima that no team uses."""
    guarantee, use = ledger.guarantee[kind], ledger.use[kind]
    return sum(guarantee[team] - use[team] for team in ledger.children[0])


def _parts(minimum: dict[int, float], used: dict[int, float]) -> dict[int, float]:
    """Each team's part of the unused minimum of the others, in proportion to its own minimum."""
    unused = {team: max(least - used[team], 0.0) for team, least in minimum.items()}
    left, pool = sum(unused.values()), sum(minimum.values())
    return {team: (left - unused[team]) * least / pool if pool > 0 else 0.0 for team, least in minimum.items()}


def may_start(ledger: QuotaLedger, claim: Claim) -> Refusal | None:
    """Check the maximum (hard limits along the path), then the sum of all minima."""
    room = ledger.limit_room(claim.queue, claim.kinds)
    if claim.gpus > room + EPSILON:
        return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    left = min(_left(ledger, kind) for kind in claim.kinds) if ledger.paths[claim.queue] else inf
    return None if claim.gpus <= left + EPSILON else Refusal(Code.QUOTA, max(left, 0.0), claim.gpus)


def targets(ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Fits) -> tuple[Target, ...] | Refusal:
    """The victims of the newcomer: `over_quota` work of other teams, or lower priorities of its own; () for none."""
    teams = Teams(ledger, claim)
    trial = Trial(teams, room)
    if trial.fits():
        return ()
    part = not (teams.team and teams.within(teams.team, part=False))  # it needs more than its minimum
    due = bool(teams.team) and teams.within(teams.team, part=True)
    own = [other for other in running if part and teams.team_of[other.queue] == teams.team]
    marked = [
        other for other in running if due and other.over_quota and teams.team_of[other.queue] not in {0, teams.team}
    ]
    lower = [other for other in own if other.priority < claim.priority]
    soft = ([o for o in marked if o.preemptible], [o for o in lower if o.preemptible])
    if trial.fewest(_in_order(teams, *soft, part=part)):
        trial.spare()
        return trial.answer()
    lacked_room = trial.lacked_room
    if not teams.limits.allow():
        code = Code.LIMIT
    elif trial.fewest(_in_order(teams, marked, lower, part=part)):
        code = Code.PROTECTED
    elif lacked_room:
        code = Code.CAPACITY
    elif marked:
        code = Code.FAIRNESS
    elif len(own) > len(lower):
        code = Code.PRIORITY
    else:
        code = Code.CAPACITY if teams.allows() else Code.QUOTA
    return Refusal(code, max(teams.free_gpus, 0.0) if teams.team else 0.0, claim.gpus)


def keeps(_books: QuotaLedger, _claim: Claim) -> float:
    """No quota hold: work on lent quota is marked `over_quota`, so the team can always reclaim it."""
    return 0.0


def head_key(_books: QuotaLedger, claim: Claim) -> tuple[float, ...]:
    """Order of the heads of all queues: priority, then submit time."""
    return (-float(claim.priority), claim.submit_s)


def _in_order(teams: Teams, marked: Sequence[Claim], own: Sequence[Claim], *, part: bool) -> Iterator[Claim]:
    """Victims in order; those of another team only while it is above its minimum (with `part`: plus its part)."""
    for other in sorted(marked, key=victim_order):
        if not teams.within(teams.team_of[other.queue], part=part):
            yield other
    yield from sorted(own, key=victim_order)

"""Cohorts: queues below one parent share their guarantees and reclaim them by classic preemption.

The quota arithmetic is that of Kueue's cohorts (pkg/cache/scheduler/resource_node.go). The quota of a queue is its own
guarantee plus what the queues below it lend. It does not lend the part above its lend limit. Use beyond that part
counts against its cohort, up to its borrow limit, and so on up the tree. A child of the root is the top of its tree
and shares nothing with other trees. Lend limits, borrow limits and hard limits count GPUs of all models together;
guarantees are also counted per model. Work in the root itself has no quota.

Victims (Kueue's classic preemption, pkg/scheduler/preemption) are first gangs of queues that use more than their own
quota, then gangs of the newcomer's own queue; in each, lowest priority first, then youngest.
 - If the newcomer's side of the tree stays within its own quota, only `reclaim` restricts the victims.
 - Otherwise the queue itself must end within its own guarantee. With `while_borrowing` it may also borrow; its victims
   then have a lower priority, up to the one stated there.
 - A gang larger than the quota of its queue (or of its cohorts below the top) may not preempt, unless
   `while_borrowing` is set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger
from autopilot.core.quota.rules.base import Claim, Fits, Refusal, Target
from autopilot.core.quota.rules.trial import Limits, Trial, started_s

NAME = "cohort-classic"


@dataclass(slots=True)
class Tree:
    """Quota of one cohort tree in one kind of GPU, by queue; a mutable copy."""

    quota: dict[int, float]  # its guarantee plus what the queues below it lend
    kept: dict[int, float]  # the part of it that it does not lend
    used: dict[int, float]  # by its own work, plus the use of the queues below beyond what they keep
    borrow: dict[int, float]  # the most that it may borrow

    def beyond(self, queue: int) -> float:
        """GPUs that `queue` uses of its cohort: its use above the part that it does not lend."""
        return max(self.used[queue] - self.kept[queue], 0.0)

    def book(self, path: Sequence[int], gpus: float) -> None:
        """Record that work of `path[0]` holds `gpus` more (fewer if negative)."""
        for queue in path:
            before = self.beyond(queue)
            self.used[queue] += gpus
            gpus = self.beyond(queue) - before

    def free(self, path: Sequence[int]) -> float:
        """GPUs that `path[0]` may still use; negative if it uses too many."""
        top = path[-1]
        free = self.quota[top] - self.used[top]
        for queue in reversed(path[:-1]):
            lent = self.quota[queue] - self.kept[queue]
            own = max(self.kept[queue] - self.used[queue], 0.0)
            free = own + min(free, lent - self.beyond(queue) + self.borrow[queue])
        return free

    def most(self, path: Sequence[int]) -> float:
        """GPUs that `path[0]` could use if all were idle."""
        most = self.quota[path[-1]]
        for queue in reversed(path[:-1]):
            most = min(self.kept[queue] + most, self.quota[queue] + self.borrow[queue])
        return most

    def over(self, queue: int) -> float:
        """GPUs that `queue` uses above its own quota; 0.0 if it stays within."""
        over = self.used[queue] - self.quota[queue]
        return over if over > EPSILON else 0.0


def cohort_tree(ledger: QuotaLedger, kind: int, top: int) -> Tree:
    """The tree below `top`, a child of the root, in one kind."""
    tree, rows = Tree({}, {}, {}, {}), [top]
    for queue in rows:  # grows while the loop runs
        rows.extend(ledger.children[queue])
    guarantee, use = ledger.guarantee[kind], ledger.use[kind]
    bounded = kind == ALL
    lend, borrow = ledger.queues.lend_limit.tolist(), ledger.queues.borrow_limit.tolist()
    for queue in reversed(rows):
        quota, used = guarantee[queue], use[queue]
        for each in ledger.children[queue]:
            quota += tree.quota[each] - tree.kept[each]
            used += tree.beyond(each) - use[each]
        tree.quota[queue], tree.used[queue] = quota, used
        tree.kept[queue] = max(quota - lend[queue], 0.0) if bounded and lend[queue] >= 0 else 0.0
        tree.borrow[queue] = float(borrow[queue]) if bounded and borrow[queue] >= 0 else inf
    return tree


class Quotas:
    """The trees of the newcomer's cohort in each of its kinds, including the newcomer: a `Ledger`."""

    def __init__(self, ledger: QuotaLedger, claim: Claim) -> None:
        self.ledger, self.claim = ledger, claim
        self.path = ledger.paths[claim.queue]
        self.trees = {kind: cohort_tree(ledger, kind, self.path[-1]) for kind in claim.kinds if self.path}
        frees = {kind: tree.free(self.path) for kind, tree in self.trees.items()}
        self.free_gpus = min(frees.values(), default=inf)  # before the newcomer was added
        self.most_gpus = min((tree.most(self.path) for tree in self.trees.values()), default=inf)
        short = tuple(kind for kind, free in frees.items() if claim.gpus > free + EPSILON)
        self.contested = short or claim.kinds  # kinds in which quota must be freed
        self.may_borrow = True
        self.limits = Limits(ledger, claim)
        for tree in self.trees.values():
            tree.book(self.path, claim.gpus)
        # position in its path of the lowest queue whose own quota covers the newcomer and all running work
        self.holder = next((at for at, queue in enumerate(self.path) if self.within(queue)), len(self.path))

    def book(self, other: Claim, sign: int) -> None:
        """Remove a running gang (-1) or put it back (+1)."""
        self.limits.book(other, sign)
        for kind, tree in self.trees.items():
            if kind in other.kinds and other.queue in tree.quota:
                tree.book(self.ledger.paths[other.queue], sign * other.gpus)

    def allows(self) -> bool:
        """True if the newcomer is within its quotas and hard limits."""
        return (
            self.limits.allow()
            and all(tree.free(self.path) >= -EPSILON for tree in self.trees.values())
            and (self.may_borrow or self.within(self.claim.queue))
        )

    def within(self, queue: int) -> bool:
        """True if `queue` stays within its own quota in every kind, including the newcomer."""
        return not any(tree.over(queue) for tree in self.trees.values())

    def borrows(self, queue: int) -> bool:
        """True if `queue` uses more than its own quota in a contested kind."""
        return any(self.trees[kind].over(queue) for kind in self.contested if kind in self.trees)

    def may_lose(self, queue: int) -> bool:
        """True if another queue, and each cohort on its side of the tree, borrows, so its work may be preempted."""
        mine, theirs = self.ledger.parting(self.claim.queue, queue)
        path = self.ledger.paths[queue]
        return mine != theirs and all(self.borrows(each) for each in path[: path.index(theirs) + 1])

    def owed_by(self, queue: int) -> bool:
        """True if the newcomer's side of the tree, where the two paths diverge, covers it with its own quota."""
        mine, _ = self.ledger.parting(self.claim.queue, queue)
        return self.path.index(mine) >= self.holder

    def rivals(self, running: Sequence[Claim]) -> list[Claim]:
        """Gangs that hold contested kinds, in the newcomer's queue or in a borrowing queue of its tree."""
        contested, own = set(self.contested), self.claim.queue
        tree = next((tree.quota.keys() for tree in self.trees.values()), {own: 0.0}.keys())
        open_queues = {queue for queue in tree if queue == own or self.may_lose(queue)}
        return [o for o in running if o.queue in open_queues and not contested.isdisjoint(o.kinds)]

    def free_before(self) -> float:
        """GPUs that were free for the newcomer at first; 0.0 where no quota applies."""
        return max(self.free_gpus, 0.0) if self.free_gpus < inf else 0.0


def may_start(ledger: QuotaLedger, claim: Claim) -> Refusal | None:
    """Check the hard limits along the path, then the quota of the queue and what it may borrow, in every kind."""
    room = ledger.limit_room(claim.queue, claim.kinds)
    if claim.gpus > room + EPSILON:
        return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    path = ledger.paths[claim.queue]
    free = min((cohort_tree(ledger, kind, path[-1]).free(path) for kind in claim.kinds if path), default=inf)
    return Refusal(Code.QUOTA, max(free, 0.0), claim.gpus) if claim.gpus > free + EPSILON else None


def targets(ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Fits) -> tuple[Target, ...] | Refusal:
    """The victims of the newcomer: borrowers of its cohort first, then its own queue; () if it needs none."""
    quotas = Quotas(ledger, claim)
    trial = Trial(quotas, room)
    if trial.fits():
        return ()
    if quotas.most_gpus < claim.gpus - EPSILON:
        return Refusal(Code.QUOTA, quotas.most_gpus, claim.gpus)
    rivals = quotas.rivals(running)
    soft = [other for other in rivals if other.preemptible]
    allowed = may_displace(quotas, in_cohort=_while_borrowing(quotas))
    if allowed and _search(trial, quotas, soft):
        return trial.answer()
    lacked_room = trial.lacked_room
    if allowed and len(soft) < len(rivals) and _search(trial, quotas, rivals):
        return Refusal(Code.PROTECTED, quotas.free_before(), claim.gpus)
    why = (_barred(quotas, other, allowed) for other in soft)
    return why_not(quotas, {code for code in why if code}, lacked_room=lacked_room)


def _search(trial: Trial, quotas: Quotas, rivals: Sequence[Claim]) -> bool:
    """Find victims among `rivals` and leave them in `trial`; False, with `trial` unchanged, if there are none."""
    queues, claim = quotas.ledger.queues, quotas.claim
    within, reclaim = int(queues.within_queue[claim.queue]), int(queues.reclaim[claim.queue])
    own = sorted((o for o in rivals if o.queue == claim.queue and permits(within, claim, o)), key=victim_order)
    others = sorted((o for o in rivals if o.queue != claim.queue and permits(reclaim, claim, o)), key=victim_order)
    owed = [other for other in others if quotas.owed_by(other.queue)]
    weighed = [other for other in others if not quotas.owed_by(other.queue)]
    for may_borrow in _attempts(quotas, owed, weighed):
        quotas.may_borrow = may_borrow
        if trial.fewest(_in_order(quotas, owed, weighed, own)):
            trial.spare()
            if not may_borrow and all(_usable(quotas, other) for other in trial.taken):
                quotas.may_borrow = True  # none of the victims forbids it to borrow
                trial.spare(last=True)
            return True
    quotas.may_borrow = True
    return False


def _attempts(quotas: Quotas, owed: Sequence[Claim], weighed: Sequence[Claim]) -> tuple[bool, ...]:
    """Whether the newcomer's queue may borrow, in the order tried. Without borrowing, more gangs are candidates."""
    claim, never = quotas.claim, _while_borrowing(quotas) == Displace.NEVER
    trees = [quotas.trees[kind] for kind in quotas.contested if kind in quotas.trees]
    below = all(tree.used[claim.queue] - claim.gpus < tree.quota[claim.queue] - EPSILON for tree in trees)
    if not (owed or weighed) or (never and not below):
        return (True,)
    return (False, True) if never and not owed else (True, False)


def _in_order(quotas: Quotas, owed: Sequence[Claim], weighed: Sequence[Claim], own: Sequence[Claim]) -> Iterator[Claim]:
    """Victims in order; those of another queue only while it still borrows."""
    for other in (*owed, *weighed):
        if quotas.may_lose(other.queue) and (not quotas.may_borrow or _usable(quotas, other)):
            yield other
    yield from own


def _while_borrowing(quotas: Quotas) -> Displace:
    return Displace(int(quotas.ledger.queues.while_borrowing[quotas.claim.queue]))


def _usable(quotas: Quotas, other: Claim) -> bool:
    """True if the newcomer may preempt `other` even if its queue then borrows."""
    if other.queue == quotas.claim.queue or quotas.owed_by(other.queue):
        return True
    highest = int(quotas.ledger.queues.while_borrowing_priority[quotas.claim.queue])
    return permits(_while_borrowing(quotas), quotas.claim, other) and other.priority <= highest


def _barred(quotas: Quotas, other: Claim, allowed: bool) -> Code | None:
    """Why a gang cannot be preempted; None if it can."""
    code = barred(quotas, other)
    if code is None and not allowed:
        return Code.POLICY
    if code is None and not _usable(quotas, other):
        return Code.POLICY if _while_borrowing(quotas) == Displace.NEVER else Code.PRIORITY
    return code


def owed(ledger: QuotaLedger, claim: Claim) -> bool:
    """True if the gang's queue, including the gang, stays within its own quota: that quota was lent by contract."""
    quotas = Quotas(ledger, claim)
    return bool(quotas.path) and quotas.within(claim.queue)


def keeps(ledger: QuotaLedger, claim: Claim) -> float:
    """GPUs of idle quota held for a waiting head, because its queue may not be able to reclaim them later.

    Only a queue whose `reclaim` is `any` can certainly reclaim, so it holds none. Held is the idle part of its own
    guarantee and, if it has to borrow, of what it may borrow. A gang that is too large to preempt holds none (Kueue:
    resourcesToReserve).
    """
    return kept_gpus(ledger, claim, in_cohort=Displace(int(ledger.queues.while_borrowing[claim.queue])))


def kept_gpus(ledger: QuotaLedger, claim: Claim, *, in_cohort: Displace) -> float:
    """`keeps`, for a queue that may preempt by `in_cohort` while it borrows."""
    quotas = Quotas(ledger, claim)
    sure = int(ledger.queues.reclaim[claim.queue]) == Displace.ANY
    if sure or not quotas.trees or quotas.most_gpus < claim.gpus - EPSILON:
        return 0.0
    if not may_displace(quotas, in_cohort=in_cohort):
        return 0.0
    borrowing = not quotas.within(claim.queue)
    left = (
        min(
            tree.quota[claim.queue] + (tree.borrow[claim.queue] if borrowing else 0.0) - tree.used[claim.queue]
            for tree in quotas.trees.values()
        )
        + claim.gpus
    )
    return max(min(claim.gpus, left, quotas.free_gpus, ledger.limit_room(claim.queue, claim.kinds)), 0.0)


def head_key(ledger: QuotaLedger, claim: Claim) -> tuple[float, ...]:
    """Order of the heads of all queues: levels up to which it borrows (0: none), then priority, then submit time."""
    quotas = Quotas(ledger, claim)
    levels = min(quotas.holder, max(len(quotas.path) - 1, 0))
    return (float(levels), -float(claim.priority), claim.submit_s)


def may_displace(quotas: Quotas, *, in_cohort: Displace) -> bool:
    """True if a gang of this size may preempt: it fits the quota of its queue, or of a cohort below the top."""
    claim = quotas.claim
    small = all(claim.gpus <= tree.quota[claim.queue] + EPSILON for tree in quotas.trees.values())
    return small or in_cohort != Displace.NEVER or quotas.holder < len(quotas.path) - 1


def permits(how: int, claim: Claim, other: Claim) -> bool:
    """True if the setting `how` of a queue lets `claim` preempt `other`."""
    if how == Displace.ANY:
        return True
    lower = other.priority < claim.priority
    newer = other.priority == claim.priority and other.submit_s > claim.submit_s
    return how != Displace.NEVER and (lower or (how == Displace.LOWER_OR_NEWER_EQUAL and newer))


def victim_order(claim: Claim) -> tuple[float, ...]:
    """Sort key of victims: lowest priority first, then the youngest."""
    return (float(claim.priority), -started_s(claim), float(claim.row))


def barred(quotas: Quotas, other: Claim) -> Code | None:
    """Why the settings of the newcomer's queue forbid it to preempt `other`; None if they allow it."""
    claim, queues = quotas.claim, quotas.ledger.queues
    how = int((queues.within_queue if other.queue == claim.queue else queues.reclaim)[claim.queue])
    if permits(how, claim, other):
        return None
    if how == Displace.NEVER:  # reported only where another setting would help
        return Code.POLICY if other.priority < claim.priority else Code.OK
    return Code.PRIORITY


def why_not(quotas: Quotas, reasons: Collection[Code], *, lacked_room: bool) -> Refusal:
    """Why there is no victim, from the reasons of all candidates: the first that a person can change."""
    claim = quotas.claim
    if not quotas.limits.allow():
        return Refusal(Code.LIMIT, max(quotas.ledger.limit_room(claim.queue, claim.kinds), 0.0), claim.gpus)
    if lacked_room:
        code = Code.CAPACITY
    else:
        known = (Code.FAIRNESS, Code.POLICY, Code.PRIORITY)
        rest = Code.CAPACITY if quotas.allows() else Code.QUOTA
        code = next((each for each in known if each in reasons), rest)
    return Refusal(code, quotas.free_before(), claim.gpus)

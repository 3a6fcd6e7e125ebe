"""Cohorts: queues below one parent share their guarantees, and the classic way of taking them back.

The arithmetic is that of Kueue's cohorts (pkg/cache/scheduler/resource_node.go). A queue has its own guarantee
and what the queues below it lend; it keeps to itself what it has above its lend limit. What it uses beyond that
weighs on its cohort, up to its borrow limit; and so on upwards. A child of the root is the top of its tree and
shares nothing with other trees. Lend, borrow and hard limits count GPUs of every model together; guarantees
are also counted for each model. Work that stands in the root itself is under no quota.

Taking back (Kueue's classical preemption, pkg/scheduler/preemption): first gangs of queues that use more than
is theirs, then gangs of the newcomer's own queue; in each the lowest priority first, then the youngest.
 - Where the newcomer's side of the tree stays within its own quota, `reclaim` alone says whom it may take.
 - Where it does not, the queue itself must end within its own guarantee; with `while_borrowing` it may also
   borrow, and then takes lower priorities up to the one stated there.
 - A gang that is larger than what its queue (or a cohort of it below the top) has may take nobody, unless
   `while_borrowing` is set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger
from autopilot.core.rules.base import Claim, Fits, Refusal, Target
from autopilot.core.rules.trial import Limits, Trial, started_s

NAME = "cohort-classic"


@dataclass(slots=True)
class Tree:
    """Quota of one cohort tree in one kind of GPU, by queue; a copy that may be changed."""

    quota: dict[int, float]  # its guarantee and what the queues below lend it
    kept: dict[int, float]  # the part of it that it does not lend
    used: dict[int, float]  # its own work, and what the queues below use beyond what they keep
    borrow: dict[int, float]  # the most that it may borrow

    def beyond(self, queue: int) -> float:
        """What `queue` uses of its cohort: all but what it keeps to itself."""
        return max(self.used[queue] - self.kept[queue], 0.0)

    def book(self, path: Sequence[int], gpus: float) -> None:
        """Work of `path[0]` holds `gpus` more (fewer, when negative)."""
        for queue in path:
            before = self.beyond(queue)
            self.used[queue] += gpus
            gpus = self.beyond(queue) - before

    def free(self, path: Sequence[int]) -> float:
        """What `path[0]` may still take; negative when it uses too much."""
        top = path[-1]
        free = self.quota[top] - self.used[top]
        for queue in reversed(path[:-1]):
            lent = self.quota[queue] - self.kept[queue]
            own = max(self.kept[queue] - self.used[queue], 0.0)
            free = own + min(free, lent - self.beyond(queue) + self.borrow[queue])
        return free

    def most(self, path: Sequence[int]) -> float:
        """What `path[0]` could take if nothing were used."""
        most = self.quota[path[-1]]
        for queue in reversed(path[:-1]):
            most = min(self.kept[queue] + most, self.quota[queue] + self.borrow[queue])
        return most

    def over(self, queue: int) -> float:
        """What `queue` uses beyond its own quota; 0.0 when it stays within."""
        over = self.used[queue] - self.quota[queue]
        return over if over > EPSILON else 0.0


def cohort_tree(ledger: QuotaLedger, kind: int, top: int) -> Tree:
    """The tree below `top`, a child of the root, in one kind."""
    tree, rows = Tree({}, {}, {}, {}), [top]
    for queue in rows:  # they become more on the way down
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
    """The trees of a newcomer's cohort in each of its kinds, with the newcomer booked: a `Ledger`."""

    def __init__(self, ledger: QuotaLedger, claim: Claim) -> None:
        self.ledger, self.claim = ledger, claim
        self.path = ledger.paths[claim.queue]
        self.trees = {kind: cohort_tree(ledger, kind, self.path[-1]) for kind in claim.kinds if self.path}
        frees = {kind: tree.free(self.path) for kind, tree in self.trees.items()}
        self.free_gpus = min(frees.values(), default=inf)  # before it was booked
        self.most_gpus = min((tree.most(self.path) for tree in self.trees.values()), default=inf)
        short = tuple(kind for kind, free in frees.items() if claim.gpus > free + EPSILON)
        self.contested = short or claim.kinds  # quota that is to be made free
        self.may_borrow = True
        self.limits = Limits(ledger, claim)
        for tree in self.trees.values():
            tree.book(self.path, claim.gpus)
        # position in its path of the lowest queue whose own quota holds it together with all that runs now
        self.holder = next((at for at, queue in enumerate(self.path) if self.within(queue)), len(self.path))

    def book(self, other: Claim, sign: int) -> None:
        """Take a running gang off (-1) or put it back (+1)."""
        self.limits.book(other, sign)
        for kind, tree in self.trees.items():
            if kind in other.kinds and other.queue in tree.quota:
                tree.book(self.ledger.paths[other.queue], sign * other.gpus)

    def allows(self) -> bool:
        """Is the newcomer inside its quotas and hard limits?"""
        return (
            self.limits.allow()
            and all(tree.free(self.path) >= -EPSILON for tree in self.trees.values())
            and (self.may_borrow or self.within(self.claim.queue))
        )

    def within(self, queue: int) -> bool:
        """Does `queue` stay within its own quota in every kind, with the newcomer?"""
        return not any(tree.over(queue) for tree in self.trees.values())

    def borrows(self, queue: int) -> bool:
        """Does `queue` use more than its own quota in a contested kind?"""
        return any(self.trees[kind].over(queue) for kind in self.contested if kind in self.trees)

    def donates(self, queue: int) -> bool:
        """May work of `queue` be taken: does it, and each cohort on its side of the tree, borrow? Never its own."""
        mine, theirs = self.ledger.parting(self.claim.queue, queue)
        path = self.ledger.paths[queue]
        return mine != theirs and all(self.borrows(each) for each in path[: path.index(theirs) + 1])

    def owed_by(self, queue: int) -> bool:
        """Does the newcomer's side of the tree, where its path and that of `queue` part, hold it in its own quota?"""
        mine, _ = self.ledger.parting(self.claim.queue, queue)
        return self.path.index(mine) >= self.holder

    def rivals(self, running: Sequence[Claim]) -> list[Claim]:
        """Gangs that hold contested kinds, of its own queue or of one in its tree that borrows."""
        contested, own = set(self.contested), self.claim.queue
        tree = next((tree.quota.keys() for tree in self.trees.values()), {own: 0.0}.keys())
        open_queues = {queue for queue in tree if queue == own or self.donates(queue)}
        return [o for o in running if o.queue in open_queues and not contested.isdisjoint(o.kinds)]

    def free_before(self) -> float:
        """What was free for the newcomer at first; 0.0 where no quota applies."""
        return max(self.free_gpus, 0.0) if self.free_gpus < inf else 0.0


def may_start(ledger: QuotaLedger, claim: Claim) -> Refusal | None:
    """Hard limits along the path, then what its queue has and may borrow, in every kind."""
    room = ledger.limit_room(claim.queue, claim.kinds)
    if claim.gpus > room + EPSILON:
        return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    path = ledger.paths[claim.queue]
    free = min((cohort_tree(ledger, kind, path[-1]).free(path) for kind in claim.kinds if path), default=inf)
    return Refusal(Code.QUOTA, max(free, 0.0), claim.gpus) if claim.gpus > free + EPSILON else None


def targets(ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Fits) -> tuple[Target, ...] | Refusal:
    """Whom the newcomer displaces: borrowers of its cohort first, then its own queue; () when it needs nobody."""
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
    """Find victims among `rivals` and leave them in `trial`; False, and nothing taken, when there are none."""
    queues, claim = quotas.ledger.queues, quotas.claim
    within, reclaim = int(queues.within_queue[claim.queue]), int(queues.reclaim[claim.queue])
    own = sorted((o for o in rivals if o.queue == claim.queue and permits(within, claim, o)), key=mercy)
    donors = sorted((o for o in rivals if o.queue != claim.queue and permits(reclaim, claim, o)), key=mercy)
    owed = [other for other in donors if quotas.owed_by(other.queue)]
    weighed = [other for other in donors if not quotas.owed_by(other.queue)]
    for may_borrow in _attempts(quotas, owed, weighed):
        quotas.may_borrow = may_borrow
        if trial.fewest(_in_order(quotas, owed, weighed, own)):
            trial.spare()
            if not may_borrow and all(_usable(quotas, other) for other in trial.taken):
                quotas.may_borrow = True  # nobody is left for whose sake it must not
                trial.spare(last=True)
            return True
    quotas.may_borrow = True
    return False


def _attempts(quotas: Quotas, owed: Sequence[Claim], weighed: Sequence[Claim]) -> tuple[bool, ...]:
    """May the newcomer's queue borrow, in the order in which it is tried: without borrowing more gangs may be taken."""
    claim, never = quotas.claim, _while_borrowing(quotas) == Displace.NEVER
    trees = [quotas.trees[kind] for kind in quotas.contested if kind in quotas.trees]
    below = all(tree.used[claim.queue] - claim.gpus < tree.quota[claim.queue] - EPSILON for tree in trees)
    if not (owed or weighed) or (never and not below):
        return (True,)
    return (False, True) if never and not owed else (True, False)


def _in_order(quotas: Quotas, owed: Sequence[Claim], weighed: Sequence[Claim], own: Sequence[Claim]) -> Iterator[Claim]:
    """Victims in order; from another queue only as long as it still borrows."""
    for other in (*owed, *weighed):
        if quotas.donates(other.queue) and (not quotas.may_borrow or _usable(quotas, other)):
            yield other
    yield from own


def _while_borrowing(quotas: Quotas) -> Displace:
    return Displace(int(quotas.ledger.queues.while_borrowing[quotas.claim.queue]))


def _usable(quotas: Quotas, other: Claim) -> bool:
    """May the newcomer take `other` even if its queue borrows then?"""
    if other.queue == quotas.claim.queue or quotas.owed_by(other.queue):
        return True
    highest = int(quotas.ledger.queues.while_borrowing_priority[quotas.claim.queue])
    return permits(_while_borrowing(quotas), quotas.claim, other) and other.priority <= highest


def _barred(quotas: Quotas, other: Claim, allowed: bool) -> Code | None:
    """Why a gang cannot be displaced; None when it can."""
    code = barred(quotas, other)
    if code is None and not allowed:
        return Code.POLICY
    if code is None and not _usable(quotas, other):
        return Code.POLICY if _while_borrowing(quotas) == Displace.NEVER else Code.PRIORITY
    return code


def owed(ledger: QuotaLedger, claim: Claim) -> bool:
    """Does the gang's queue stay within its own quota with it? What others borrowed of that was lent on this
    condition.
    """
    quotas = Quotas(ledger, claim)
    return bool(quotas.path) and quotas.within(claim.queue)


def keeps(ledger: QuotaLedger, claim: Claim) -> float:
    """GPUs of idle quota that a waiting head keeps from others, because it cannot be sure to take them back.

    Only a queue whose `reclaim` is `any` can be sure. Kept is what idles of its own guarantee and, when it has to
    borrow, of what it may borrow. A gang that is too large to displace anybody keeps nothing (Kueue:
    resourcesToReserve).
    """
    return kept_gpus(ledger, claim, in_cohort=Displace(int(ledger.queues.while_borrowing[claim.queue])))


def kept_gpus(ledger: QuotaLedger, claim: Claim, *, in_cohort: Displace) -> float:
    """`keeps`, for a queue that displaces others as `in_cohort` says though it borrows."""
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
    """Order among the heads of all queues: how far up it borrows (0: not at all), then priority, then submit time."""
    quotas = Quotas(ledger, claim)
    levels = min(quotas.holder, max(len(quotas.path) - 1, 0))
    return (float(levels), -float(claim.priority), claim.submit_s)


def may_displace(quotas: Quotas, *, in_cohort: Displace) -> bool:
    """May a gang of this size displace anybody: within its queue's guarantee, or below a cohort that holds it."""
    claim = quotas.claim
    small = all(claim.gpus <= tree.quota[claim.queue] + EPSILON for tree in quotas.trees.values())
    return small or in_cohort != Displace.NEVER or quotas.holder < len(quotas.path) - 1


def permits(how: int, claim: Claim, other: Claim) -> bool:
    """Does a queue's setting let `claim` displace `other`?"""
    if how == Displace.ANY:
        return True
    lower = other.priority < claim.priority
    newer = other.priority == claim.priority and other.submit_s > claim.submit_s
    return how != Displace.NEVER and (lower or (how == Displace.LOWER_OR_NEWER_EQUAL and newer))


def mercy(claim: Claim) -> tuple[float, ...]:
    """Sort key of victims: lowest priority first, then the youngest."""
    return (float(claim.priority), -started_s(claim), float(claim.row))


def barred(quotas: Quotas, other: Claim) -> Code | None:
    """Why the settings of the newcomer's queue keep it from displacing `other`; None when they do not."""
    claim, queues = quotas.claim, quotas.ledger.queues
    how = int((queues.within_queue if other.queue == claim.queue else queues.reclaim)[claim.queue])
    if permits(how, claim, other):
        return None
    if how == Displace.NEVER:  # worth a word only where another setting would help
        return Code.POLICY if other.priority < claim.priority else Code.OK
    return Code.PRIORITY


def why_not(quotas: Quotas, reasons: Collection[Code], *, lacked_room: bool) -> Refusal:
    """Why nobody is displaced, from the reasons of all who might have been: the first that a person could change."""
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

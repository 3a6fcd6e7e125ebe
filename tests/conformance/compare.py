"""A decision beside what a case expects: every difference as (expected, got), in words.

Sets are compared as sets. A running gang that is named nowhere is expected to be kept, a waiting one that is
named nowhere not to start. Reasons are informative (`reasons`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.conformance.cases import Case, Choice, Counts, Gang
from tests.conformance.fleet import domain
from tests.conformance.outcome import Outcome
from tests.conformance.world import HOLDING, World

Difference = tuple[str, str]
"""What was expected, and what happened instead."""


@dataclass(frozen=True)
class Members:
    """What became of the members of one gang, by name."""

    running: tuple[str, ...]  # had a place before, unless they were leaving by themselves
    waiting: tuple[str, ...]
    started: tuple[str, ...]
    evicted: tuple[str, ...]
    moved: tuple[str, ...]

    @property
    def stays(self) -> tuple[str, ...]:
        """Those whose place is the same as before."""
        return tuple(name for name in self.running if name not in {*self.evicted, *self.moved})

    @property
    def fate(self) -> str:
        """What became of a running gang as a whole."""
        if self.evicted:
            return "shrink" if self.stays or self.moved else "evict"
        return "move" if self.moved else "keep"


def members_of(gang: Gang, outcome: Outcome) -> Members:
    """The members of a gang after the decision."""
    names = [task.name for task in gang.tasks]
    holding = {task.name for task in gang.tasks if task.state in HOLDING and task.state != "releasing"}
    return Members(
        running=tuple(name for name in names if name in holding),
        waiting=tuple(task.name for task in gang.tasks if task.state == "pending"),
        started=tuple(name for name in names if name in outcome.started),
        evicted=tuple(name for name in names if name in outcome.evicted),
        moved=tuple(name for name in names if name in outcome.moved),
    )


def differences(world: World, outcome: Outcome, stays_off: Callable[[str], bool]) -> list[Difference]:
    """All differences on a `schedule` or `quota` case. `stays_off(gang)`: would it be left alone if asked again?"""
    case = world.case
    members = {gang.name: members_of(gang, outcome) for gang in case.gangs}
    return [
        *(("a sound plan", problem) for problem in outcome.problems),
        *_starts(case, members, outcome),
        *_fates(case, members),
        *_choices(case, members),
        *_counts(case, members),
        *_single_members(case, members),
        *_places(world, members, outcome),
        *(
            (f"{name} is switched off", f"{name} is queued again")
            for name in case.expect.deactivated
            if not stays_off(name)
        ),
    ]


def reasons(case: Case, outcome: Outcome) -> list[Difference]:
    """Where a reason is expected and another is given."""
    return [
        (f"{name}: {reason}", f"{name}: {outcome.reasons.get(name, 'none')}")
        for name, reason in case.expect.pending.items()
        if outcome.reasons.get(name) != reason
    ]


def _tasks_named(case: Case) -> dict[str, str]:
    """Members that are named singly, each with its gang."""
    expect = case.expect
    named = {*expect.start_tasks, *expect.pending_tasks, *expect.evict_tasks, *expect.keep_tasks}
    return {task.name: gang.name for gang in case.gangs for task in gang.tasks if task.name in named}


# --- starts ------------------------------------------------------------------------------------


def _starts(case: Case, members: dict[str, Members], outcome: Outcome) -> Iterator[Difference]:
    """Waiting gangs: who starts, who must not, who starts on what is being given up, whose quota is held."""
    expect = case.expect
    counted = {*expect.tasks, *_tasks_named(case).values()}
    least = {gang.name: gang.least for gang in case.gangs}
    got = set()
    for name, each in members.items():
        asked = name in expect.start or (not each.running and name not in counted)
        if asked and each.started and len(each.stays + each.moved + each.started) >= least[name]:
            got.add(name)
        elif not each.running and 0 < len(each.started) < least[name]:
            yield (
                f"{name} whole or not at all",
                f"{len(each.started)} members of {name} start, not {least[name]}",
            )
    if got != set(expect.start):
        yield _listed("start", expect.start), _listed("start", got)
    for name in expect.pending:
        if members[name].started and name not in got:
            yield f"{name} waits", _listed(f"of {name} start", members[name].started)
    modes = expect.start_mode
    for name, mode in (dict.fromkeys(expect.start, modes) if isinstance(modes, str) else modes).items():
        booked = "reserved" if name in outcome.on_leaving else "now"
        if name in got and booked != mode:
            yield f"{name} starts: {mode}", f"{name} starts: {booked}"
    if expect.reserved is not None and set(expect.reserved) != outcome.held:
        yield _listed("quota held for", expect.reserved), _listed("quota held for", outcome.held)


# --- those that run ----------------------------------------------------------------------------


def _fates(case: Case, members: dict[str, Members]) -> Iterator[Difference]:
    """Running gangs: kept, moved or evicted as named; kept where they are named nowhere."""
    expect = case.expect
    chosen = {name for choice in expect.choose for name in choice.candidates}
    loose = {*expect.tasks, *_tasks_named(case).values(), *chosen}
    loose |= {gang.name for gang in case.gangs if chosen & {task.name for task in gang.tasks}}
    wanted = {name: fate for fate in ("keep", "evict", "move") for name in getattr(expect, fate)}
    for name, each in members.items():
        fate = wanted.get(name, "" if name in loose else "keep")
        if each.running and fate and each.fate != fate:
            yield f"{fate} {name}", f"{each.fate} {name}"
        elif not each.running and wanted.get(name) in {"evict", "move"}:
            yield f"{fate} {name}", f"{name} does not run"


def _choices(case: Case, members: dict[str, Members]) -> Iterator[Difference]:
    """Exactly this many of a list; the others on it stay, unless another list or count names them."""
    elsewhere = {*case.expect.evict, *case.expect.move, *case.expect.tasks}
    for choice in case.expect.choose:
        verb, count = ("evict", choice.evict) if choice.evict is not None else ("move", choice.move)
        hit = [name for name in choice.candidates if _happened(verb, name, members)]
        if len(hit) != count:
            yield f"{verb} {count} of {', '.join(choice.candidates)}", _listed(verb, hit)
        others = elsewhere.union(*(c.candidates for c in case.expect.choose if c is not choice))
        for name in _spared(choice, hit):
            if name not in others and not _happened("keep", name, members):
                yield f"keep {name}", f"{name} is not kept"


def _spared(choice: Choice, hit: list[str]) -> list[str]:
    return [name for name in choice.candidates if name not in hit]


def _happened(verb: str, name: str, members: dict[str, Members]) -> bool:
    """Did this happen to a gang, or to a single member?"""
    if name in members:
        return members[name].fate == verb
    owner = next(each for each in members.values() if name in {*each.running, *each.waiting})
    return name in {"evict": owner.evicted, "move": owner.moved, "keep": owner.stays}[verb]


# --- members -----------------------------------------------------------------------------------


def _counts(case: Case, members: dict[str, Members]) -> Iterator[Difference]:
    """Counts by gang. `running` are those that have a place afterwards, or those that kept theirs where the
    newly started or moved ones are counted beside.
    """
    for name, wanted in case.expect.tasks.items():
        each = members[name]
        stays, started, moved = len(each.stays), len(each.started), len(each.moved)
        got = {
            "started": {started},
            "evicted": {len(each.evicted)},
            "moved": {moved},
            "survive": {stays + moved},
            "pending": {len(each.waiting) - started},
            "running": _running(wanted, stays, started, moved),
        }
        for what, count in wanted:
            if count is not None and count not in got[what]:
                yield f"{name}: {count} {what}", f"{name}: {' or '.join(map(str, sorted(got[what])))} {what}"


def _running(wanted: Counts, stays: int, started: int, moved: int) -> set[int]:
    totals = {stays + started + moved}
    if wanted.started is not None:
        totals |= {total - started for total in totals}
    if wanted.moved is not None:
        totals |= {total - moved for total in totals}
    return totals


def _single_members(case: Case, members: dict[str, Members]) -> Iterator[Difference]:
    """Members listed individually; without a count for their gang, no other member of it starts or leaves."""
    expect, gang_of = case.expect, _tasks_named(case)
    for verb, names in (("start", expect.start_tasks), ("evict", expect.evict_tasks)):
        for gang in dict.fromkeys(gang_of[name] for name in names):
            wanted = {name for name in names if gang_of[name] == gang}
            got = set(members[gang].started if verb == "start" else members[gang].evicted)
            counts = expect.tasks.get(gang, Counts())
            counted = (counts.started if verb == "start" else counts.evicted) is not None
            if not (wanted <= got if counted else wanted == got):
                yield _listed(verb, wanted), _listed(verb, got)
    for name in expect.keep_tasks:
        if name not in members[gang_of[name]].stays:
            yield f"keep {name}", f"{name} is not kept"
    for name in expect.pending_tasks:
        if name in members[gang_of[name]].started or name not in members[gang_of[name]].waiting:
            yield f"{name} waits", f"{name} does not wait"


def _places(world: World, members: dict[str, Members], outcome: Outcome) -> Iterator[Difference]:
    """Nodes of started and moved members, and the domain that all members share."""
    nodes = {**{name: seat.node for name, seat in world.seats.items()}, **outcome.started, **outcome.moved}
    labels = {box.name: box.labels for box in world.fleet.boxes}
    for name, allowed in world.case.expect.place.items():
        got = {nodes[task] for task in (*members[name].started, *members[name].moved)}
        if not got <= set(allowed):
            yield _listed(f"{name} on", allowed), _listed(f"{name} on", got)
    for name, level in world.case.expect.same_domain.items():
        each = members[name]
        got = {nodes[task] for task in (*each.started, *each.moved, *each.stays) if task in nodes}
        domains = {domain(labels[node], node, world.fleet.levels, level) for node in got}
        if len(domains) > 1 or None in domains:
            yield f"{name} in one {level}", _listed(f"{name} on", got)


def _listed(verb: str, names: object) -> str:
    """`verb a, b`, or `verb nobody`."""
    assert isinstance(names, (list, set, tuple))
    return f"{verb} {', '.join(sorted(map(str, names))) or 'nobody'}"

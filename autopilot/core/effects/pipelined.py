"""Pipelined starts: starts that wait until their victims are gone.

    evicted ──> gone ──> started        each part (the gang, and victims that move) separately
       │          │
       └──────────┴────> given up       its deadline passed, its room is lost, or the gang no longer exists

A victim is gone once its GPUs are seen free (`leaves_still`); a status or a counter of its eviction is not enough.

A pipelined start is kept in memory, so it survives a restart. At each tick it is first put on the what-if: its victims
release their slots and its parts hold them, so that nothing else is planned there. A part starts once the snapshot
shows its slots free. At the deadline, the ready parts start and the rest is given up. Giving up has no further effect:
stopped victims are pending like all other work, and a shrunk gang may grow again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.starts import Part, PipelinedStart
from autopilot.core.model.records import Slot, Victim
from autopilot.core.model.snapshot import ClusterSnapshot, Gate, State
from autopilot.core.model.work import leaves_still
from autopilot.core.placement.on_demand import places_of, profile_of
from autopilot.core.placement.vacate import vacate
from autopilot.core.placement.whatif import Layout, WhatIf


@dataclass(frozen=True, slots=True)
class Followed:
    """The pipelined starts after this tick."""

    open: tuple[PipelinedStart, ...]
    starts: tuple[tuple[PipelinedStart, Part], ...]  # to start now
    given_up: tuple[PipelinedStart, ...]
    late: tuple[tuple[PipelinedStart, int], ...]  # given up at the deadline, with the number of victims still there
    busy: frozenset[int]  # rows that are not planned


class Lookup:
    """Rows of a snapshot by the stable names of their objects."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot

    @cached_property
    def workload(self) -> dict[str, int]:
        """Rows of WorkloadTable by uid."""
        return rows_by_uid(self._snapshot.workloads)

    @cached_property
    def gpu(self) -> dict[str, int]:
        """Rows of GpuTable."""
        return {str(name): row for row, name in enumerate(self._snapshot.gpus.uuid.tolist())}

    @cached_property
    def instance(self) -> dict[str, int]:
        """Rows of InstanceTable."""
        return {str(name): row for row, name in enumerate(self._snapshot.instances.id.tolist())}

    @cached_property
    def place(self) -> dict[str, int]:
        """Rows, in a what-if, of instances that claims could have made now."""
        places = places_of(self._snapshot)
        return {places.id_of(self._snapshot, row): row for row in range(places.first, places.first + len(places))}

    def layout(self, slots: Sequence[Slot]) -> Layout | None:
        """Slots as rows; None if a GPU no longer exists, or an instance neither exists nor could be made."""
        rows = {name: self._row(name) for name in {slot.instance for slot in slots}}
        if None in rows.values() or any(slot.gpu not in self.gpu for slot in slots):
            return None
        return Layout(
            np.array([self.gpu[slot.gpu] for slot in slots], np.int32),
            np.array([rows[slot.instance] for slot in slots], np.int32),
            np.array([slot.milli for slot in slots], np.int32),
        )

    def _row(self, instance: str) -> int | None:
        if not instance:
            return -1
        return self.place.get(instance) if profile_of(instance) else self.instance.get(instance)


def follow_pipelined(
    pipelined_starts: Sequence[PipelinedStart], whatif: WhatIf, names: Lookup, now_s: float, *, may_start: bool = True
) -> Followed:
    """Put each pipelined start on the what-if; find the parts to start and the starts to give up.

    Without `may_start` (everything is halted), nothing starts: ready parts wait until their deadline.
    """
    snapshot = whatif.snapshot
    stays, starts, given_up, late = [], [], [], []
    busy: set[int] = set()
    held = _really_held(snapshot)
    leaving = np.unique(snapshot.placements.workload[snapshot.placements.leaving]).tolist()
    for pipelined in pipelined_starts:
        mark = whatif.checkpoint()
        placed, rows = _book(pipelined, whatif, names, leaving)
        ready = [part for part in placed if may_start and _may_start(part, snapshot, names, held)]
        # at the deadline, parts that are ready start and the rest is given up
        if now_s >= pipelined.deadline_s and len(ready) < len(placed):
            whatif.rollback(mark)
            placed, rows = _book(replace(pipelined, parts=tuple(ready)), whatif, names, leaving)
            ready = [part for part in ready if part in placed]
        expected = any(part.uid == pipelined.uid for part in pipelined.parts)
        lost = expected and not any(part.uid == pipelined.uid for part in placed)
        if lost or (pipelined.parts and not placed):
            whatif.rollback(mark)
            given_up.append(pipelined)
            there = len(victims_of(pipelined, snapshot, names)) if now_s >= pipelined.deadline_s else 0
            late += [(pipelined, there)] if there else []
            continue
        busy |= rows
        starts += [(pipelined, part) for part in ready]
        left = tuple(part for part in placed if part not in ready)
        if left:
            stays.append(replace(pipelined, parts=left))
    return Followed(tuple(stays), tuple(starts), tuple(given_up), tuple(late), frozenset(busy))


def _book(
    pipelined: PipelinedStart, whatif: WhatIf, names: Lookup, leaving: Sequence[int]
) -> tuple[list[Part], set[int]]:
    """Move victims off and parts onto their slots on the what-if. Returns the placed parts, and all rows involved.

    A part that cannot take its slots claims none of them: their holders keep them on the what-if.
    """
    victims = set(victims_of(pipelined, whatif.snapshot, names))
    layouts: dict[int, Layout] = {}
    parts: dict[int, Part] = {}
    for part in pipelined.parts:
        row, layout = names.workload.get(part.uid), names.layout(part.slots)
        if row is not None and layout is not None and (row in victims or _waits(part, row, whatif.snapshot)):
            layouts[row], parts[row] = layout, part
    away = [*victims, *(row for row in leaving if row not in victims)]
    mark = whatif.checkpoint()
    while parts:
        vacate(whatif, away, list(layouts.values()), {})
        homeless = {row for row in parts if not _take(whatif, row, layouts[row])}
        if not homeless:
            break
        whatif.rollback(mark)
        parts = {row: part for row, part in parts.items() if row not in homeless}
        layouts = {row: layouts[row] for row in parts}
    return list(parts.values()), {*victims, *parts}


def victims_of(pipelined: PipelinedStart, snapshot: ClusterSnapshot, names: Lookup) -> dict[int, Victim]:
    """The victims with GPUs not seen free yet, by row."""
    found, held, work = {}, snapshot.placements, snapshot.workloads
    for victim in pipelined.victims:
        row = names.workload.get(victim.uid)
        if row is None or not leaves_still(snapshot, row, victim.incarnation, pipelined.since_s):
            continue
        if victim.how == "shrink" and int(work.incarnation[row]) != victim.incarnation:  # it has a width of its own now
            claimed = {slot.gpu for part in pipelined.parts if part.uid != victim.uid for slot in part.slots}
            if claimed.isdisjoint(snapshot.gpus.uuid[held.gpu[held.workload == row]].tolist()):
                continue
        found[row] = victim
    return found


def _waits(part: Part, row: int, snapshot: ClusterSnapshot) -> bool:
    """True if the part is pending in the expected incarnation and may start."""
    work = snapshot.workloads
    return bool(
        work.state[row] == State.PENDING
        and work.incarnation[row] == part.incarnation
        and work.gate[row] == Gate.OPEN
        and not work.excluded[row]
    )


def _take(whatif: WhatIf, row: int, layout: Layout) -> bool:
    """Put a part on its slots, in addition to those it still holds; False if they are not free or not usable."""
    if not whatif.fits(layout):
        return False
    rest = whatif.layout_of(row)
    if len(rest):
        whatif.evict(row)
    whatif.place(row, rest.joined(layout) if len(rest) else layout)
    return True


def _really_held(snapshot: ClusterSnapshot) -> Mapping[str, np.ndarray]:
    """GPUs held in the snapshot, including leaving work: thousandths by GPU, holders by instance."""
    held = snapshot.placements
    plain = held.instance < 0
    return {
        "gpu": np.bincount(held.gpu[plain], held.milli[plain], minlength=len(snapshot.gpus.uuid)),
        "instance": np.bincount(held.instance[~plain], minlength=len(snapshot.instances.id)),
    }


def _may_start(part: Part, snapshot: ClusterSnapshot, names: Lookup, held: Mapping[str, np.ndarray]) -> bool:
    """True if the part is pending and the snapshot shows its slots free."""
    row, layout = names.workload[part.uid], names.layout(part.slots)
    if layout is None or not _waits(part, row, snapshot):
        return False
    return layout.fits_beside(held["gpu"], held["instance"])


def once_done(memory: ControllerMemory, whatif: WhatIf, busy: Container[int]) -> dict[int, Layout]:
    """Layouts of `busy` rows after effects under way and pipelined starts end, as counted by the ledger from now.

    The what-if shows the holders until then. A start that could not be put on it is left out.
    """
    names, work = Lookup(whatif.snapshot), whatif.snapshot.workloads
    after: dict[int, Layout] = {}

    def note(uid: str, slots: Sequence[Slot], *, leaves: bool) -> None:
        row, layout = names.workload.get(uid), names.layout(slots)
        if row is None or row not in busy:
            return
        if layout is not None and (leaves or shows(whatif, row, layout)):
            after[row] = layout
        elif not leaves and slots and work.state[row] == State.PENDING and len(whatif.layout_of(row)):
            after[row] = whatif.layout_of(row)  # it takes others of the same node

    for entry in memory.effects.in_flight.values():
        effect = entry.instruction
        leaves = effect.operation.stops
        note(effect.subject.uid, effect.operation.slots, leaves=leaves)
    for pipelined in memory.starts.pipelined_starts:
        for row, victim in victims_of(pipelined, whatif.snapshot, names).items():
            if row not in after:
                note(victim.uid, victim.keeps if victim.how == "shrink" else (), leaves=True)
        for part in pipelined.parts:
            note(part.uid, part.slots, leaves=False)
    return after


def shows(whatif: WhatIf, row: int, layout: Layout) -> bool:
    """True if the gang holds all of `layout` on the what-if."""
    return set(whatif.layout_of(row).places()).issuperset(layout.places())


# --- memory -------------------------------------------------------------------------------------------


def drop_declined(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory without starts whose victims declined to leave, and without waits that are over.

    The newcomers of these starts are planned again immediately, with other victims.
    """
    over, before = {effect.proposal_id for effect in tick.declined}, memory.starts
    starts = tuple(each for each in before.pipelined_starts if each.proposal_id not in over)
    until_s = before.no_pipelined_until_s
    if not tick.blind:
        until_s = {uid: end_s for uid, end_s in until_s.items() if end_s > tick.now_s}
    if len(starts) == len(before.pipelined_starts) and len(until_s) == len(before.no_pipelined_until_s):
        return memory
    return replace(memory, starts=replace(before, pipelined_starts=starts, no_pipelined_until_s=until_s))


def enter_starts(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the starts waiting for their victims from now on."""
    if not planned.starts:
        return memory
    starts = (*memory.starts.pipelined_starts, *planned.starts)
    return replace(memory, starts=replace(memory.starts, pipelined_starts=starts))


def start_timers_s(memory: ControllerMemory, _planned: Planned) -> Iterable[float]:
    """Deadlines of starts, and the times from which gangs may have a new one."""
    yield from memory.starts.no_pipelined_until_s.values()
    yield from (each.deadline_s for each in memory.starts.pipelined_starts)

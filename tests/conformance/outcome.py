"""What a plan does to each member: who starts where, who leaves, who moves, what is only held.

The plan names gangs and slots; here it is read by member. A gang's members start by rank, the highest
first; where some slots of a gang are taken, the members on those slots are the ones that leave. What a plan
must never do whatever the case (hand out a GPU twice, cut a member in two) is collected in `problems`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.decision.planner import Planner, plan
from autopilot.core.effects.action import Action as Proposer
from autopilot.core.effects.admit import AdmitChange
from autopilot.core.effects.evict import EvictChange
from autopilot.core.effects.pipeline import PipelineChange
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import Code, Plan, Proposal, Slot, Victim
from autopilot.core.model.snapshot import GPU_MILLI, State
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.reserving.reserve import ReserveChange
from autopilot.core.sharing_time.grow import GrowChange
from tests.conformance.cases import Action, Case, Task
from tests.conformance.world import ACTIONS_OF, HOLDING, Row, World, build_world

REASON_OF = {
    Code.FRAGMENTED: "capacity",
    Code.MIG_GEOMETRY: "capacity",
    Code.TOO_WIDE: "capacity",
    Code.CHECK: "gated",
    Code.KEPT: "reserved",
}
"""The contract's word for a reason of ours, where it is another one."""

Key = tuple[str, str]
"""A slot as (GPU, MIG instance or "")."""

Use = Counter[Key]
"""Thousandths of each slot that are in use; a MIG instance is in use whole."""

MOST_STEPS = 20_000
"""Bound of the search for the members behind the slots of a start."""


@dataclass
class Outcome:
    """One decision, member by member."""

    started: dict[str, str] = field(default_factory=dict)  # task -> node
    moved: dict[str, str] = field(default_factory=dict)  # task -> node
    evicted: set[str] = field(default_factory=set)  # tasks
    held: set[str] = field(default_factory=set)  # gangs whose quota is held, no more
    on_leaving: set[str] = field(default_factory=set)  # gangs that start on what is being given up anyway
    reasons: dict[str, str] = field(default_factory=dict)  # gang -> why it waits
    problems: list[str] = field(default_factory=list)


def actions_of(action: Action) -> tuple[Proposer, ...]:
    """The rows of the product's action table that a case's action names, in the table's order."""
    return tuple(each for each in ACTIONS if each.name in ACTIONS_OF[action])


def decide(case: Case) -> tuple[World, Outcome]:
    """One decision on a `schedule` or `quota` case. Raises `InputError` for a case that cannot be built."""
    world = build_world(case)
    snapshot = world.observation.snapshot
    made, planner = plan(
        world.observation,
        world.policy,
        ControllerMemory(),
        WhatIf(snapshot),
        frozenset(),
        actions=actions_of(case.action),
    )
    outcome = read_plan(world, made)
    outcome.held = _held_without_start(world, planner)
    return world, outcome


def stays_off(case: Case, name: str) -> bool:
    """True when the gang, waiting alone on the idle cluster, is neither started nor given quota."""
    gang = next(each for each in case.gangs if each.name == name)
    waiting = [task.model_copy(update={"state": "pending", "node": None}) for task in gang.tasks]
    alone = gang.model_copy(update={"tasks": waiting, "submitted_before": [], "submitted_after": []})
    _, outcome = decide(case.model_copy(update={"gangs": [alone], "action": "admit"}))
    return not outcome.started and not outcome.held


def read_plan(world: World, made: Plan) -> Outcome:
    """The accepted proposals of a plan, member by member, and its refusals."""
    outcome = Outcome()
    left = {row.id: _held(world, row) for row in world.rows.values()}  # what each row has in use afterwards
    for proposal in made.proposals:
        if proposal.accepted:
            for victim in proposal.victims:
                _take(world, world.rows[victim.workload], victim, left, outcome)
            match proposal.change:
                case AdmitChange() | PipelineChange() | GrowChange():
                    _start(world, proposal, left, outcome)
                case EvictChange() | ReserveChange():
                    pass
                case _:
                    outcome.problems.append(f"{proposal.id} is a proposal of a kind that no case has, {proposal.kind}")
    _check_books(left, outcome)
    refusals, ids = made.refusals, world.observation.snapshot.workloads.id
    for row, number in zip(refusals.workload.tolist(), refusals.code.tolist(), strict=True):
        code = refusals.codes[number]
        gang = world.rows[str(ids[row])].gang
        gated = code == Code.DELAY and gang.gates
        outcome.reasons[gang.name] = "gated" if gated else REASON_OF.get(code, str(code))
    return outcome


def _held_without_start(world: World, planner: Planner) -> set[str]:
    """Waiting gangs that are on the plan's books, and are not proposed to start."""
    ids = world.observation.snapshot.workloads.id.tolist()
    proposed = {proposal.subject.name for proposal in planner.proposals}
    return {
        row.gang.name
        for row in world.rows.values()
        if row.state == State.PENDING
        and row.id not in proposed
        and len(planner.ctx.whatif.layout_of(ids.index(row.id)))
    }


# --- taking ------------------------------------------------------------------------------------


def _take(world: World, row: Row, victim: Victim, left: dict[str, Use], outcome: Outcome) -> None:
    """What one victim loses or where it goes."""
    keeps = _use(victim.keeps)
    holders = [task for task in row.tasks if task.state in HOLDING]
    if row.stuck or not any(task.state == "running" for task in holders):
        outcome.problems.append(f"{row.id} leaves already and is evicted again")
    left[row.id] = keeps
    staying = _seated_on(world, holders, keeps) if keeps else set()
    gone = [task for task in holders if task.name not in staying]
    if victim.how == "move":
        if not gone:  # taken off and put back where it was is a move all the same
            gone, staying = holders, set()
        places = _assign(world, gone, _on_nodes(victim.keeps) - _seated(world, staying), outcome, row.id)
        outcome.moved.update(places)
        gone = [task for task in gone if task.name not in places]
    elif keeps.total() != sum((_own(world, name) for name in staying), Counter()).total():
        outcome.problems.append(f"{row.id} is to keep slots that are no whole members of it")
    outcome.evicted.update(task.name for task in gone if task.state != "releasing")


def _seated_on(world: World, holders: Sequence[Task], keeps: Use) -> set[str]:
    """Members all of whose slots are among `keeps`; of several on one shared GPU the higher rank."""
    rest = Counter(keeps)
    staying = set()
    for task in sorted(holders, key=lambda each: -each.rank):
        own = _own(world, task.name)
        if own <= rest:
            staying.add(task.name)
            rest -= own
    return staying


def _own(world: World, task: str) -> Use:
    """What one member holds; nothing when it needs no GPU."""
    snapshot, used = world.observation.snapshot, Counter[Key]()
    if task in world.seats:
        for gpu, instance in world.seats[task].rows:
            name = str(snapshot.instances.id[instance]) if instance >= 0 else ""
            used[str(snapshot.gpus.uuid[gpu]), name] += world.seats[task].milli or GPU_MILLI
    return used


def _held(world: World, row: Row) -> Use:
    """What a row holds and does not give up."""
    return sum((_own(world, task.name) for task in row.tasks if task.state != "releasing"), Counter())


def _use(slots: Sequence[Slot]) -> Use:
    used = Counter[Key]()
    for slot in slots:
        used[slot.gpu, slot.instance] += GPU_MILLI if slot.instance else slot.milli
    return used


def _seated(world: World, tasks: set[str]) -> Counter[str]:
    """Entries of these members by node."""
    return sum(
        (Counter({world.seats[task].node: len(world.seats[task].rows)}) for task in tasks if task in world.seats),
        Counter(),
    )


def _on_nodes(slots: Sequence[Slot]) -> Counter[str]:
    return Counter(slot.node for slot in slots)


# --- starting ----------------------------------------------------------------------------------


def _start(world: World, proposal: Proposal, left: dict[str, Use], outcome: Outcome) -> None:
    """Members that start on the slots of a proposal; those that had just been taken off are moved by it.

    A gang that grows is given all its slots anew, those that it has among them.
    """
    row = world.rows[proposal.subject.name]
    off = [task for task in row.tasks if task.name in outcome.evicted]
    waiting = [task for task in row.tasks if task.state == "pending" and task.name not in outcome.started]
    new, rest = [], Counter(left[row.id])
    for slot in proposal.slots:
        own = _use([slot])
        if own <= rest:
            rest -= own
        else:
            new.append(slot)
    if rest:
        outcome.problems.append(f"{row.id} grows and loses slots by it")
    places = _assign(world, off or waiting, _on_nodes(new), outcome, row.id)
    if off:
        outcome.moved.update(places)
        outcome.evicted -= places.keys()
    else:
        outcome.started.update(places)
        if isinstance(proposal.change, PipelineChange) and not proposal.victims:
            outcome.on_leaving.add(row.gang.name)
    left[row.id] = _use(proposal.slots)


def _assign(world: World, tasks: Sequence[Task], rooms: Counter[str], outcome: Outcome, who: str) -> dict[str, str]:
    """A node for as many of `tasks` as fill `rooms` (entries by node) exactly, the earlier ones first."""
    members = [task for task in tasks if world.sizes[task.name].width]
    seen: set[tuple[int, tuple[tuple[str, int], ...]]] = set()

    def place(at: int, rooms: dict[str, int]) -> dict[str, str] | None:
        if not rooms:
            return {}
        state = (at, tuple(sorted(rooms.items())))
        if at == len(members) or state in seen or len(seen) > MOST_STEPS:
            return None
        seen.add(state)
        task = members[at]
        width = world.sizes[task.name].width
        for node in sorted(rooms, key=lambda each: (rooms[each], each)):
            if rooms[node] >= width and world.fleet.carries(node, task.node_selector):
                rest = {other: room - width * (other == node) for other, room in rooms.items()}
                found = place(at + 1, {other: room for other, room in rest.items() if room})
                if found is not None:
                    return {task.name: node, **found}
        return place(at + 1, rooms)

    places = place(0, dict(rooms))
    if places is None:
        outcome.problems.append(f"{who} is given slots that its members cannot use")
        return {}
    bare = [task for task in tasks if not world.sizes[task.name].width]  # they need no GPU, only the gang
    return {**places, **{task.name: next(iter(rooms)) for task in bare if rooms}}


def _check_books(left: Mapping[str, Use], outcome: Outcome) -> None:
    """No GPU is allocated beyond its whole and no instance twice, once all that leaves has left."""
    used = sum(left.values(), Counter())
    outcome.problems += [
        f"{instance or gpu} is allocated beyond its whole"
        for (gpu, instance), milli in sorted(used.items())
        if milli > GPU_MILLI
    ]

"""The plan of one tick so far: additions by actions and the planner.

Theory of operation. Arrays over the pending gangs have the order of `Context.pending`; a gang is named by its position
there (`at`), other work by its row. Each pending gang has its turn once (`take_turn`). At its turn a start stands
(`decide`), or a refusal states code, value and threshold (`refuse`); a later, better reason replaces an earlier one.
The rest, in the order of turns, are the candidates of the later actions (`undecided`) and become the refusals of the
plan.

The plan also predicts. `gpu_free_at_s` has the predicted free time of each GPU; a start moves it (`foresee`), and
`leave` counts on the leaving of victims. Holds keep room (`held`) or quota (`quota_holds`) for later starts; each start
that outlives a hold lowers its spare room (`use_spare`).

Guards and explanations read the fields; changes go only through the methods below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.records import Code, Note, Refusals, Reservation
from autopilot.core.model.snapshot import F64, I8, I32, Bools
from autopilot.core.placement.shapes import Miss, Shape
from autopilot.core.placement.whatif import Layout

CODES = tuple(Code)
CODE_INDEX = {code: number for number, code in enumerate(CODES)}
NO_TURN = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation in the form of the planner: rows instead of names, and the room left to others.

    Over the nodes of the reservation: `counts`, its GPUs on each, and `spare`, the GPUs open to work with an end after
    `start_s`. A hold of MIG instances takes no GPUs: it has the `instances` (rows) free by then, and in `left` [1] the
    number of them open to such work. `lent`: its part above the guarantee of its queue (on each node; of instances,
    their number [1]). Guarantees of other queues take precedence over it.
    """

    row: int
    record: Reservation
    shape: Shape
    start_s: float
    nodes: I32
    counts: I32
    spare: I32
    queue: int = -1  # its work, and that of the queues below it, may use the room; -1: only the gang itself
    instances: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    left: I32 = field(default_factory=lambda: np.zeros(1, np.int32))
    lent: I32 = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass(frozen=True, slots=True)
class QuotaHold:
    """Quota kept for an overdue gang: in `queue` and below it, of a kind, all of it by `ready_s`.

    `sheltered`: room in a guarantee, only taken by work that may not be preempted; else room under a limit.
    """

    row: int
    queue: int
    kind: int
    sheltered: bool
    ready_s: float
    lent: bool = False  # the gang would be above the guarantee of its queue: as in `Held`


ENOUGH = 4
"""Proposals that a budget of the cluster refuses in one tick before others of as many victims are not made.

These show what waits for the budget. Their wish lasts, so they are first once it allows them: with the default dwell
time that is 48 in an hour, above the default budget of 20.
"""


@dataclass(slots=True)
class PlanState:
    """The plan so far in this tick."""

    gpu_free_at_s: F64  # when each GPU comes free by prediction; -inf now, inf never, [gpus]
    taken: Bools  # gangs that are already decided, [pending]
    code: I8  # index into CODES: why each gang waits, [pending]
    value: F64  # measured value behind that reason, [pending]
    threshold: F64  # what it was compared with, [pending]
    turn: I32  # order of turns, NO_TURN before a gang had one, [pending]
    turns_taken: int = 0
    # positions of the gangs that may ask for GPUs of running work now, in order; None: all, in the order of turns
    asking: NDArray[np.intp] | None = None
    leaving: dict[int, Layout | None] = field(default_factory=dict)  # row -> what it keeps when it has left
    held: list[Held] = field(default_factory=list)
    quota_holds: list[QuotaHold] = field(default_factory=list)
    moves_tried: set[int] = field(default_factory=set)  # positions for which moves were proposed at their turn
    # victims of recommendations: what each holds, and what it would keep
    paper: dict[int, tuple[Layout, Layout | None]] = field(default_factory=dict)
    # places that held-back preemptions will use once the guard that holds them passes
    wanted: list[Layout] = field(default_factory=list)
    over_budget: set[frozenset[int]] = field(default_factory=set)  # victims, by row, that a budget refused
    # number of victims of each proposal that a budget of the cluster refused
    turned_away: list[int] = field(default_factory=list)
    released: list[str] = field(default_factory=list)  # workloads whose promise is released
    notes: list[Note] = field(default_factory=list)  # why actions did nothing, where no proposal shows it
    accepted: list[Disruption] = field(default_factory=list)
    conditions: dict[Condition, float] = field(default_factory=dict)  # those that hold now, and since when
    recuts: list[str] = field(default_factory=list)  # pools of the GPUs whose geometry is to change
    drained: set[str] = field(default_factory=set)  # UUIDs of GPUs that are to be drained from now on
    gone: set[str] = field(default_factory=set)  # those whose drain has ended, because nothing needs it any more
    # seconds until instances exist that are being made for a gang, by its position
    served: dict[int, float] = field(default_factory=dict)
    made: dict[int, tuple[str, ...]] = field(default_factory=dict)  # UUIDs of GPUs that become whole for it, likewise
    advance: dict[str, tuple[str, ...]] = field(default_factory=dict)  # nodes of each advance reservation
    quota_taken: set[str] = field(default_factory=set)  # uids of work that waits and loses its reserved quota
    asked: list[int] = field(default_factory=list)  # rows of starts that wait for a person, in order
    steps: int = 0  # of searches for victims and moves
    unneeded: tuple[str, ...] = ()  # nodes that nothing needs, of the pools that shrink
    wake_s: list[float] = field(default_factory=list)  # when an action could decide otherwise with no new event

    # --- gangs that wait ---------------------------------------------------------------------

    def take_turn(self, at: int) -> None:
        """Note the turn of the gang at `at`."""
        self.turn[at] = self.turns_taken
        self.turns_taken += 1

    def ask_in_order(self, positions: NDArray[np.intp] | None) -> None:
        """Let only these gangs ask for GPUs of running work, in this order; None: all, in the order of turns."""
        self.asking = positions

    def decide(self, at: int, stands: bool) -> bool:
        """Note if the start of the gang at `at` stands; the same answer."""
        self.taken[at] = stands
        return stands

    def refuse(self, position: int | NDArray[np.integer], miss: Miss) -> None:
        """Note the reason for the wait of the pending row(s) at `position`; a later, better reason replaces it."""
        self.code[position] = CODE_INDEX[miss.code]
        self.value[position] = miss.value
        self.threshold[position] = miss.threshold

    def undecided(self) -> NDArray[np.intp]:
        """Positions still waiting, in the order of their turns."""
        left = np.flatnonzero(~self.taken)
        return left[np.argsort(self.turn[left], kind="stable")]

    def refusals(self, pending: I32) -> Refusals:
        """Columns for every pending row without a proposal, in the order of turns."""
        left = self.undecided()
        return Refusals(CODES, pending[left], self.code[left], self.value[left], self.threshold[left])

    def try_moves(self, at: int) -> None:
        """Note a proposal of moves for the gang at `at`."""
        self.moves_tried.add(at)

    # --- holds and promises ------------------------------------------------------------------

    def hold(self, held: Held) -> None:
        """Hold room."""
        self.held.append(held)

    def drop_hold(self, row: int) -> None:
        """Give back the room held for the gang of `row`."""
        self.held = [held for held in self.held if held.row != row]

    def hold_quota(self, holds: Iterable[QuotaHold]) -> None:
        """Keep quota for overdue gangs."""
        self.quota_holds.extend(holds)

    def take_quota(self, uids: Iterable[str]) -> None:
        """Note work (uids) whose reserved quota goes to a start."""
        self.quota_taken.update(uids)

    def ask(self, row: int) -> None:
        """Note a start that waits for its own approval, or for the approval of the start that makes its room."""
        self.asked.append(row)

    def release(self, workload: str) -> None:
        """Release the promise of a workload."""
        self.released.append(workload)

    def reserve_nodes(self, name: str, nodes: tuple[str, ...]) -> None:
        """Note the nodes of an advance reservation."""
        self.advance[name] = nodes

    # --- MIG geometry ------------------------------------------------------------------------

    def recut(self, pool: str) -> None:
        """Count a change of geometry of this tick."""
        self.recuts.append(pool)

    def drain(self, uuids: Iterable[str]) -> None:
        """Note GPUs to be drained from now on."""
        self.drained.update(uuids)

    def let_go(self, uuids: Iterable[str]) -> None:
        """Note GPUs whose drain ends without a change."""
        self.gone.update(uuids)

    def serve(self, at: int, seconds: float, gpus: tuple[str, ...] = ()) -> None:
        """Note a change of geometry with room for the gang at `at` within `seconds`; nothing is preempted for it.

        `gpus`: UUIDs of the GPUs that become whole for it.
        """
        self.served[at] = seconds
        self.made |= {at: gpus} if gpus else {}
        self.refuse(at, Miss(Code.RECUT, seconds, 0.0))

    # --- nodes -------------------------------------------------------------------------------

    def not_needed(self, nodes: Iterable[str]) -> None:
        """Note the nodes without any need."""
        self.unneeded = tuple(nodes)

    # --- running work ------------------------------------------------------------------------

    def foresee(self, layout: Layout, end_s: float) -> None:
        """Note the predicted end of the use of these GPUs."""
        self.gpu_free_at_s[layout.gpu] = end_s

    def use_spare(self, holds: Sequence[Held], gpus_per_node: I32, instances: I32, sign: int = 1) -> None:
        """Take GPUs and instances (rows) off the spare room of these reservations; with -1 give them back.

        `gpus_per_node` [nodes].
        """
        for held in holds:
            np.subtract(held.spare, sign * gpus_per_node[held.nodes], out=held.spare)
            if len(held.instances):
                held.left[0] -= sign * np.isin(instances, held.instances).sum()

    def spares(self) -> list[tuple[I32, I32]]:
        """Spare room of the holds now, for `restore_spares`."""
        return [(held.spare.copy(), held.left.copy()) for held in self.held]

    def restore_spares(self, spares: Sequence[tuple[I32, I32]]) -> None:
        """Restore the answer of `spares`."""
        for held, (spare, left) in zip(self.held, spares, strict=True):
            held.spare[:], held.left[:] = spare, left

    def leave(self, row: int, keeps: Layout | None = None) -> None:
        """Count on the leaving of a running gang, except for `keeps`."""
        self.leaving[row] = keeps

    def accept(self, disruptions: Iterable[Disruption]) -> None:
        """Count disruptions accepted by the guards."""
        self.accepted.extend(disruptions)

    def recommend(self, victims: Mapping[int, tuple[Layout, Layout | None]]) -> None:
        """Note victims of a recommendation: the layout of each, and the layout that it would keep."""
        self.paper.update(victims)

    def exceed(self, rows: Iterable[int], *, of_cluster: bool) -> None:
        """Note the refusal of a budget, of the cluster or a narrower one, to stop or move these gangs together."""
        victims = frozenset(rows)
        self.over_budget.add(victims)
        if of_cluster:
            self.turned_away.append(len(victims))

    def exhausted(self, victims: int = 1) -> bool:
        """True once budgets of the cluster have refused enough proposals in this tick, one of as few victims."""
        return len(self.turned_away) >= ENOUGH and victims >= min(self.turned_away)

    def want(self, layouts: Iterable[Layout]) -> None:
        """Keep elastic gangs off places of a preemption that a guard holds back for now."""
        self.wanted.extend(layouts)

    # --- what is remembered and reported -----------------------------------------------------

    def since_s(self, condition: Condition, otherwise_s: float) -> float:
        """Start of a present condition; `otherwise_s` for one that is new to this tick."""
        return self.conditions.setdefault(condition, otherwise_s)

    def remember(self, conditions: Mapping[Condition, float]) -> None:
        """Carry conditions of earlier ticks on."""
        self.conditions.update(conditions)

    def note(self, note: Note) -> None:
        """Report the reason for an action without effect."""
        self.notes.append(note)

    def wake_at(self, *times_s: float) -> None:
        """Ask for a tick at these times."""
        self.wake_s.extend(times_s)

    def spend(self, steps: int) -> None:
        """Count steps of a search."""
        self.steps += steps

"""A little cluster that does what it is told, tick by tick: for tests of what begins at one tick and ends at another.

    play = Ticking("2x8", [holds("v", 8), waits("w", 8)])
    play.tick(0.0)          # v is evicted; it holds its GPUs until play.leave("v")
    play.leave("v")
    play.tick(30.0)         # w starts

Memory goes through its text at every tick, as a file would keep it. Whatever is done that a real cluster would
refuse (GPUs that somebody holds, a start in the wrong state) raises AssertionError at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Submit
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Instruction, Observation, Outcome, OutcomeKind, Save, Slot
from autopilot.core.model.snapshot import GPU_MILLI, ClusterSnapshot, QueueTable, State
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import QuotaLedger, build_ledger
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import AUTO, Item, observe, queue_tree, snapshot, with_policy
from tests.kits.instructions import asked

ALL_AUTO = replace(AUTO, name="all-auto", modes=Modes(*[Mode.AUTO] * len(Modes.__dataclass_fields__)))
"""Every action acts by itself."""

EAGER = with_policy(
    ALL_AUTO,
    hysteresis={"dwell_s": 0.0, "margin_ratio": 0.0, "cool_down_s": 0.0},
    protection={"min_runtime_s": 0.0},
    budget={"per_cluster": 1000, "per_tenant": 1000, "per_node": 1000, "concurrent": 1000},
    preemption={"blast_ratio": 1e6, "priority_weight": 1e6},
    reservation={"depth": 0},
)
"""The same without any patience: what may be taken is taken at once."""


@dataclass
class Gang:
    """One workload as the cluster knows it; `on`: the GPU rows that it holds."""

    columns: dict[str, Any]
    state: State
    on: tuple[int, ...] = ()
    incarnation: int = 0


def tenants(
    *rows: tuple[str, int, int],
    limit: Mapping[str, int] | None = None,
    weight: Mapping[str, float] | None = None,
    priority: Mapping[str, int] | None = None,
    order: int = 0,
    guarantee_kept: Sequence[int] = (),
) -> QueueTable:
    """A queue tree of (id, parent row, guaranteed GPUs); row 0 is the root, row 1 the first of them."""
    limits, weights = limit or {}, weight or {}
    tree = queue_tree(
        *((name, parent, limits.get(name, -1)) for name, parent, _ in rows), priority=priority, order=order
    )
    guarantee = tree.guarantee.copy()
    guarantee[1:, 0] = [guaranteed for _, _, guaranteed in rows]
    chosen = np.array([1.0, *(weights.get(name, 1.0) for name, _, _ in rows)])
    kept = np.array(guarantee_kept or [0] * len(tree.id), np.int8)
    return replace(tree, guarantee=guarantee, weight=chosen, guarantee_kept=kept)


class Ticking:
    """See the module. `slow`: evictions take until `leave`; else they are done at once."""

    def __init__(
        self,
        shape: str,
        work: Iterable[Item],
        policy: Policy = EAGER,
        *,
        queues: QueueTable | None = None,
        slow: bool = True,
        **more: Any,
    ) -> None:
        self.shape, self.policy, self.queues, self.slow, self.more = shape, policy, queues, slow, more
        self.nodes, self.per_node = (int(part) for part in shape.split("x"))
        self.gangs: dict[str, Gang] = {}
        self.down: set[int] = set()
        self.unable: set[str] = set()  # who cannot save in time
        self.memory = ControllerMemory()
        self.outcomes: tuple[Outcome, ...] = ()
        self.texts: list[str] = []
        self.ledger: QuotaLedger | None = None
        self.yielding: set[str] = set()  # protected work that an owner may take back, at the last tick
        self.sheltered: set[str] = set()  # protected work that is not lent
        self.sent: set[str] = set()  # instructions that got here or died on the way
        self.told: list[tuple[float, str, str]] = []  # (time, kind of effect, workload)
        given = list(work)
        first = snapshot(shape, given, queues=queues, **more)
        for row, item in enumerate(given):
            on = tuple(first.placements.gpu[first.placements.workload == row].tolist())
            columns = {name: value for name, value in item.columns.items() if name not in {"state", "incarnation"}}
            self.gangs[item.id] = Gang(
                columns, State(first.workloads.state[row]), on, int(first.workloads.incarnation[row])
            )

    # --- the cluster ----------------------------------------------------------------------------

    def submit(self, *items: Item) -> None:
        """More work arrives."""
        for item in items:
            self.gangs[item.id] = Gang(dict(item.columns), State.PENDING)

    def leave(self, *names: str) -> None:
        """Who was told to leave is gone now, and pending again."""
        for name in names:
            gang = self.gangs[name]
            assert gang.state == State.CHECKPOINTING, f"{name} was not told to leave"
            self._stop(gang, State.PENDING)

    def leave_all(self) -> None:
        """All who were told to leave."""
        self.leave(*self.leaving())

    def leaving(self) -> list[str]:
        """Who was told to leave and is still there."""
        return sorted(name for name, gang in self.gangs.items() if gang.state == State.CHECKPOINTING)

    def finish(self, *names: str) -> None:
        """Work that ends by itself; it is shown once more."""
        for name in names:
            self._stop(self.gangs[name], State.SUCCEEDED)

    def cancel(self, *names: str) -> None:
        """Its owner takes the work away."""
        for name in names:
            del self.gangs[name]

    def lose_node(self, node: int) -> None:
        """A node fails, and with it whatever has a member there."""
        self.down.add(node)
        for gang in self.gangs.values():
            if any(gpu // self.per_node == node for gpu in gang.on):
                self._stop(gang, State.PENDING)

    def _stop(self, gang: Gang, state: State) -> None:
        gang.state, gang.on, gang.incarnation = state, (), gang.incarnation + 1
        gang.columns.pop("stale_since_s", None)  # what is whole again

    def on(self, name: str) -> tuple[int, ...]:
        """GPU rows that a gang holds."""
        return self.gangs[name].on

    def running(self) -> list[str]:
        """Who runs."""
        return sorted(name for name, gang in self.gangs.items() if gang.state == State.RUNNING)

    # --- ticks ----------------------------------------------------------------------------------

    def observe(self, now_s: float) -> Observation:
        """What a controller would see."""
        return observe(self.snapshot(), now_s, tick=self.memory.tick + 1, outcomes=self.outcomes)

    def snapshot(self, items: Sequence[Item] | None = None) -> ClusterSnapshot:
        """The cluster as it is, or with other work on it."""
        nodes = {"ready": [node not in self.down for node in range(self.nodes)], **self.more.get("nodes", {})}
        rest = {name: value for name, value in self.more.items() if name != "nodes"}
        return snapshot(self.shape, self.items() if items is None else items, queues=self.queues, nodes=nodes, **rest)

    def items(self) -> list[Item]:
        """The work as it is."""
        return [item_of(name, gang) for name, gang in self.gangs.items()]

    def tick(self, now_s: float, *, lost: bool = False) -> Step:
        """Decide once and carry out the instructions; `lost`: the process dies after it saved its memory and before it
        acts.
        """
        observation = self.observe(now_s)
        step = reconcile(
            self.memory, observation, self.policy, actions=(*ACTIONS, Action("admit_gang", "", self._look))
        )
        self.texts.append(memory_text(step.memory))
        self.memory = read_memory_text(self.texts[-1], "memory")
        assert memory_text(self.memory) == self.texts[-1]
        ended = [name for name, gang in self.gangs.items() if gang.state == State.SUCCEEDED]
        self.cancel(*ended)
        self.sent |= {each.id for each in step.instructions} if lost else set()
        self.outcomes = () if lost else tuple(self._apply(each, now_s) for each in step.instructions)
        return step

    def _look(self, ctx: Context, _submit: Submit) -> None:
        quota, ids = ctx.quota, ctx.observation.snapshot.workloads.id
        self.ledger = quota.ledger
        self.yielding = {str(ids[row]) for row in quota.yielding}
        self.sheltered = {str(ids[row]) for row in np.flatnonzero(quota.protected).tolist() if row not in quota.lent}

    def _apply(self, order: Instruction, now_s: float) -> Outcome:
        gang = self.gangs.get(order.subject.name)
        if gang is None or gang.incarnation != order.subject.revision:
            return Outcome(order.id, OutcomeKind.CONFLICT, now_s)
        self.told.append((now_s, order.kind, order.subject.name))
        if order.kind == "evict":
            if gang.state != State.RUNNING:
                return Outcome(order.id, OutcomeKind.CONFLICT, now_s)
            if asked(order, EvictOperation).save == Save.MUST and order.subject.name in self.unable:
                return Outcome(order.id, OutcomeKind.DECLINED, now_s)
            if self.slow:
                gang.state = State.CHECKPOINTING
                return Outcome(order.id, OutcomeKind.ACCEPTED, now_s)
            self._stop(gang, State.PENDING)
            return Outcome(order.id, OutcomeKind.DONE, now_s)
        rows = rows_of(order.operation.slots)
        again = order.id in self.sent
        self.sent.add(order.id)
        if again and any(gpu // self.per_node in self.down for gpu in rows):
            return Outcome(order.id, OutcomeKind.FAILED, now_s, "node lost since")
        self._check_free(order, rows)
        if order.kind == "admit":
            assert gang.state == State.PENDING, f"{order.subject.name} is started while it is {gang.state.name}"
            gang.state, gang.columns = State.RUNNING, {**gang.columns, "start_s": now_s}
        else:
            assert gang.state == State.RUNNING, f"{order.subject.name} is resized while it is {gang.state.name}"
            assert set(rows) < set(gang.on) or set(rows) > set(gang.on), "a resize takes or gives, not both"
            gang.incarnation += 1
        gang.on = rows
        return Outcome(order.id, OutcomeKind.DONE, now_s)

    def _check_free(self, order: Instruction, rows: tuple[int, ...]) -> None:
        """No GPU beyond its whole, none of a node that is down."""
        used = dict.fromkeys(range(self.nodes * self.per_node), 0)
        for name, gang in self.gangs.items():
            for gpu in gang.on if name != order.subject.name else ():
                used[gpu] += gang.columns.get("gpu_milli", 0) or GPU_MILLI
        for slot, gpu in zip(order.operation.slots, rows, strict=True):
            used[gpu] += slot.milli
            assert used[gpu] <= GPU_MILLI, f"{order.subject.name} is given GPU {gpu}, which somebody holds"
            assert gpu // self.per_node not in self.down, (
                f"{order.subject.name} is given GPU {gpu} of a node that is down"
            )

    # --- what must hold -------------------------------------------------------------------------

    def use(self) -> dict[str, float]:
        """What the work of each queue itself holds, by name; leaving work holds nothing more."""
        table = self.snapshot().queues
        held = dict.fromkeys(table.id.tolist(), 0.0)
        for gang in self.gangs.values():
            if gang.state == State.RUNNING:
                part = (gang.columns.get("gpu_milli", 0) or GPU_MILLI) / GPU_MILLI
                held[table.id[gang.columns.get("queue", 0)]] += len(gang.on) * part
        return held

    def check_books(self) -> None:
        """The books at the end of the last tick are those of the cluster once all that was decided is done."""
        ledger = self.ledger
        assert ledger is not None
        done = self.snapshot(self._once_done())
        sheltered = np.isin(done.workloads.id.astype(str), list(self.sheltered))
        target = build_ledger(done, np.array(ledger.capacity), protected=sheltered)
        np.testing.assert_allclose(ledger.use, target.use, atol=1e-9)
        np.testing.assert_allclose(ledger.sheltered, target.sheltered, atol=1e-9)

    def _once_done(self) -> list[Item]:
        """The work when effects under way are over and landings have landed."""
        final = {name: replace(gang) for name, gang in self.gangs.items() if gang.state != State.SUCCEEDED}
        for gang in final.values():
            if gang.state == State.CHECKPOINTING:
                gang.state, gang.on = State.PENDING, ()
        for entry in self.memory.effects.in_flight.values():
            order, found = entry.instruction, final.get(entry.instruction.subject.name)
            doomed = any(gpu // self.per_node in self.down for gpu in rows_of(order.operation.slots))
            if found is not None and found.incarnation == order.subject.revision and not doomed:
                found.on = rows_of(order.operation.slots)
                found.state = State.RUNNING if order.operation.slots else State.PENDING
        for pipelined in self.memory.starts.pipelined_starts:
            for part in pipelined.parts:
                if part.workload in final:
                    final[part.workload].on, final[part.workload].state = rows_of(part.slots), State.RUNNING
        return [item_of(name, gang) for name, gang in final.items()]


def rows_of(slots: Sequence[Slot]) -> tuple[int, ...]:
    """GPU rows that slots name."""
    return tuple(int(slot.gpu.removeprefix("GPU-")) for slot in slots)


def item_of(name: str, gang: Gang) -> Item:
    """A gang as the builders of tests/kits/core_world.py take it."""
    columns = {**gang.columns, "state": gang.state, "incarnation": gang.incarnation}
    if gang.state not in {State.RUNNING, State.CHECKPOINTING}:
        columns["start_s"] = np.nan
    return Item(name, columns, gang.on or None)

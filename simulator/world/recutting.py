"""Changes of the MIG geometry of GPUs: they take time, and they can fail half-way, hang, or have no effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autopilot.core.hardware.mig import find_gpu_model, fits, is_legal
from autopilot.core.model.snapshot import Recut as State
from simulator.world.allocation import FREE, Refusal
from simulator.world.breakable import Breakable
from simulator.world.facts import Recut, Recutting
from simulator.world.physics import up_to_grid

RECUT = 5
"""Kind of the event that ends a change, for the engine; its subject is a GPU."""

Geometry = Sequence[tuple[str, int]]


class Ending(StrEnum):
    """The end of a change of geometry."""

    DONE = "done"
    FAILED = "failed"  # half-way: a part of the new instances exists
    STUCK = "stuck"  # it does not end until the node is repaired
    IGNORED = "ignored"  # success is reported, and the geometry is as before


@dataclass(slots=True)
class _Change:
    """One change under way, or a failed one waiting for its repair."""

    number: int
    before: tuple[tuple[str, int], ...]
    after: tuple[tuple[str, int], ...]
    was_whole: bool  # MIG mode was off before
    whole: bool  # MIG mode is off afterwards
    ending: Ending
    effect: str
    scope: str
    failed: bool = False


def _as_asked(_gpu: int, _now_s: float) -> tuple[Ending, float]:
    """Every change succeeds in its usual time."""
    return Ending.DONE, 0.0


class Recuts:
    """The changes of one cluster. `fate(gpu, now)` returns the end of a change, and the time of its repair (s)."""

    def __init__(self, cluster: Breakable, took_s: float) -> None:
        """A change takes `took_s`."""
        self._cluster, self._took_s = cluster, took_s
        self._open: dict[int, _Change] = {}
        self._count = 0
        self.fate: Callable[[int, float], tuple[Ending, float]] = _as_asked

    def states(self) -> list[int]:
        """The state of each GPU, as its node reports it (`snapshot.Recut`)."""
        states = [int(State.SETTLED)] * len(self._cluster.hardware.node_of)
        for gpu, change in self._open.items():
            for each in self._stopped_by(gpu, change.scope) if not change.failed else ():
                states[each] = int(State.CHANGING)
        for gpu, change in self._open.items():
            if change.failed:
                states[gpu] = int(State.FAILED)
        return states

    def changing(self, gpu: int) -> bool:
        """True if a change under way stops this GPU."""
        return any(
            not change.failed and gpu in self._stopped_by(each, change.scope) for each, change in self._open.items()
        )

    def _stopped_by(self, gpu: int, scope: str) -> Sequence[int]:
        """The GPUs reported as changing with this one: all of its node, if the engine stops the node."""
        if scope != "node":
            return (gpu,)
        hardware = self._cluster.hardware
        node = hardware.node_of[gpu]
        return range(hardware.first_gpu[node], hardware.first_gpu[node] + hardware.node_gpus[node])

    def present(self, gpu: int) -> tuple[tuple[str, int], ...]:
        """The instances of a GPU by first slice."""
        hardware = self._cluster.hardware
        cuts = [hardware.instances[row] for row in hardware.cut.get(gpu, ())]
        return tuple(sorted(((cut.profile, cut.start) for cut in cuts), key=lambda cut: (cut[1], cut[0])))

    def in_use(self, gpu: int) -> list[tuple[str, int]]:
        """The instances of a GPU with work."""
        hardware = self._cluster.hardware
        rows = [row for row in hardware.cut.get(gpu, ()) if hardware.instance_holder[row] != FREE]
        return [(hardware.instances[row].profile, hardware.instances[row].start) for row in rows]

    def node_state(self, node: int) -> State:
        """The state reported by a node: changing while any of its GPUs is, then failed if any has failed."""
        hardware = self._cluster.hardware
        found = [change for gpu, change in self._open.items() if hardware.node_of[gpu] == node]
        if not found:
            return State.SETTLED
        return State.FAILED if all(change.failed for change in found) else State.CHANGING

    def begin_node(self, node: int, layouts: Sequence[Sequence[str] | None], now_s: float) -> Refusal | None:
        """Cut the GPUs of a node anew, all of them or none: each into instances of these profiles; None for MIG off.

        Nothing may run on the node. A GPU with these instances already stays as it is. The places are those with
        the fewest destroyed instances.
        """
        hardware = self._cluster.hardware
        first = hardware.first_gpu[node]
        if self.node_state(node) != State.SETTLED:
            return Refusal.OTHER_GEOMETRY
        model = find_gpu_model(hardware.inventory.names.gpu_models[hardware.model_of[node]])
        changes: list[tuple[int, Geometry | None, Geometry | None]] = []
        for gpu, profiles in enumerate(layouts, first):
            before: Geometry | None = self.present(gpu) if hardware.mig[gpu] else None
            if _names(before) == (None if profiles is None else sorted(profiles)):
                continue
            after: Geometry | None = None
            if profiles is not None:
                found = fits(model, (), profiles, before or ()) if model is not None else None
                if found is None:
                    return Refusal.ILLEGAL_GEOMETRY
                after = [(each.profile, each.start) for each in found]
            refusal = self._refusal(gpu, before, after, "node")
            if refusal is not None:
                return refusal
            changes.append((gpu, before, after))
        for gpu, before, after in changes:
            self.begin(gpu, before, after, now_s, scope="node")
        return None

    def begin(
        self,
        gpu: int,
        before: Geometry | None,
        after: Geometry | None,
        now_s: float,
        *,
        effect: str = "",
        scope: str = "instance",
    ) -> Refusal | None:
        """Change the geometry of a GPU; None for MIG mode off. `before` must be its present geometry.

        Instances outside `after` go at once, new ones exist at the end. With the scope `gpu` or `node` nothing
        may run on the GPU or its node, and nothing starts there meanwhile.
        """
        cluster = self._cluster
        refusal = self._refusal(gpu, before, after, scope)
        if refusal is not None:
            return refusal
        ending, extra_s = self.fate(gpu, now_s)
        self._count += 1
        target = _sorted(after) or ()
        change = _Change(self._count, self.present(gpu), target, before is None, after is None, ending, effect, scope)
        self._open[gpu] = change
        self._stop()
        turns = change.was_whole != change.whole
        cluster.publish(Recutting(now_s, gpu, True, change.before, change.after, effect, scope, turns))
        self._set(gpu, [cut for cut in change.before if cut in target], now_s, mig=True)
        took_s = self._took_s + (extra_s if ending is Ending.STUCK else 0.0)
        cluster.schedule(up_to_grid(now_s + took_s), RECUT, gpu, change.number)
        return None

    def _refusal(self, gpu: int, before: Geometry | None, after: Geometry | None, scope: str) -> Refusal | None:
        """The reason of a change not to begin."""
        hardware = self._cluster.hardware
        model = find_gpu_model(hardware.inventory.names.gpu_models[hardware.model_of[hardware.node_of[gpu]]])
        if model is None or not is_legal(model, after or ()):
            return Refusal.ILLEGAL_GEOMETRY
        if not hardware.healthy[gpu]:
            return Refusal.GPU_BROKEN
        if gpu in self._open or (self.present(gpu) if hardware.mig[gpu] else None) != _sorted(before):
            return Refusal.OTHER_GEOMETRY
        used = self.in_use(gpu)
        if (not hardware.mig[gpu] and hardware.holder[gpu] != FREE) or not set(used) <= set(after or ()):
            return Refusal.NOT_IDLE
        if after is None and used:
            return Refusal.NOT_IDLE
        if scope != "instance" and any(hardware.holders(each) for each in self._stopped_by(gpu, scope)):
            return Refusal.NOT_IDLE
        return None

    def end(self, gpu: int, now_s: float, number: int) -> bool:
        """A change ends, or a failed one is repaired; False if it was so already."""
        change = self._open.get(gpu)
        if change is None or change.number != number:
            return False
        if change.ending is Ending.FAILED and not change.failed:
            change.failed = True
            self._stop()
            kept = self.present(gpu)
            new = [cut for cut in change.after if cut not in kept]
            self._set(gpu, [*kept, *new[: len(new) // 2]], now_s, mig=True)
            repaired_s = now_s + max(self.fate(gpu, now_s)[1], 1.0)
            self._cluster.schedule(up_to_grid(repaired_s), RECUT, gpu, number)
            return True
        del self._open[gpu]
        self._stop()
        ignored = change.ending is Ending.IGNORED
        whole = change.was_whole if ignored else change.whole
        self._set(gpu, change.before if ignored else change.after, now_s, mig=not whole)
        self._cluster.publish(
            Recutting(
                now_s,
                gpu,
                False,
                change.before,
                self.present(gpu),
                change.effect,
                change.scope,
                turns=whole != change.was_whole,
            )
        )
        return True

    def _stop(self) -> None:
        """Close the GPUs with all clients stopped by the engine."""
        self._cluster.hardware.stopped = {
            each
            for gpu, change in self._open.items()
            if change.scope != "instance" and not change.failed
            for each in self._stopped_by(gpu, change.scope)
        }

    def _set(self, gpu: int, geometry: Geometry, now_s: float, *, mig: bool) -> None:
        hardware = self._cluster.hardware
        hardware.recut(gpu, geometry, mig=mig)
        rows = hardware.cut.get(gpu, ())
        cuts = tuple((row, hardware.instances[row].profile, hardware.instances[row].start) for row in rows)
        self._cluster.publish(Recut(now_s, gpu, cuts))


def _names(geometry: Geometry | None) -> list[str] | None:
    """The profiles of a geometry, sorted; None for MIG mode off."""
    return None if geometry is None else sorted(profile for profile, _ in geometry)


def _sorted(geometry: Geometry | None) -> tuple[tuple[str, int], ...] | None:
    """A geometry by first slice; None for MIG mode off."""
    if geometry is None:
        return None
    return tuple(sorted(((profile, start) for profile, start in geometry), key=lambda cut: (cut[1], cut[0])))

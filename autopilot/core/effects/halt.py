"""The pause: too many effects of several objects failed, so that something of the cluster is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.halt import Failure
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.units import counted

LEAST_OBJECTS = 3
"""Everything is paused when effects of this many objects failed: fewer may be faults of the objects."""


def halted(memory: ControllerMemory, observation: Observation) -> str:
    """The reason for a halt of everything: kill switch or pause; "" otherwise."""
    if observation.kill_switch or memory.halt.killed:
        return "kill switch"
    return memory.halt.paused_reason


def follow_failures(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the failures of the tick, and with a pause that begins or lapses."""
    halt, now_s, pause = memory.halt, tick.now_s, tick.policy.pause
    failed = () if tick.resumed else (*halt.failed, *tick.failures)
    reason, since_s = halt.paused_reason, halt.paused_since_s
    if not tick.blind:
        failed = tuple(each for each in failed if each.at_s + pause.window_s > now_s)
        if reason and not halt.paused_by and now_s >= since_s + pause.length_s:
            reason, since_s, failed = "", float("nan"), ()
        if not reason and len(failed) >= pause.failures and _widespread(failed, tick.observation.snapshot):
            objects = counted(len({each.uid for each in failed}), "object")
            reason = f"{counted(len(failed), 'effect')} on {objects} failed within {pause.window_s:g} s"
            since_s = now_s
    if reason == halt.paused_reason and failed == halt.failed:
        return memory
    return replace(memory, halt=replace(halt, failed=failed, paused_reason=reason, paused_since_s=since_s))


def pause_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """End of a pause by the autopilot itself."""
    if memory.halt.paused_reason and not memory.halt.paused_by:
        yield memory.halt.paused_since_s + planned.policy.pause.length_s


def failure_of(entry: InFlight, now_s: float) -> Failure:
    """The failure of an effect, counted by its object."""
    subject = entry.instruction.subject
    of_cluster = subject.kind in {SubjectKind.NODE, SubjectKind.GPU}
    return Failure(now_s, subject.uid, "" if of_cluster else entry.tenant)


def _widespread(failed: tuple[Failure, ...], snapshot: ClusterSnapshot) -> bool:
    """True if failures point to the cluster: they are of several objects, and not all of one tenant.

    An object of the cluster is of no tenant. If only one tenant has work, its failures alone count.
    """
    if len({each.uid for each in failed}) < LEAST_OBJECTS:
        return False
    tenants = {each.tenant for each in failed}
    return "" in tenants or len(tenants) > 1 or len(set(snapshot.workloads.tenant.tolist())) < 2

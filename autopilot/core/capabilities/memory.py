"""The capabilities with a memory, in the order in which they follow a tick.

`reconcile` folds over this table (core/model/capability.py). Each row has the reason for its place: the values changed
by a row above and read by it. The order counts for `absorb` and for notes. After the plan each row writes its own part
alone, so there the order is free.
"""

from __future__ import annotations

from autopilot.core.effects.halt import follow_failures, pause_timers_s
from autopilot.core.effects.intentions import intention_timers_s, keep_intentions
from autopilot.core.effects.ledger import enter_stops, follow_ledger, ledger_timers_s
from autopilot.core.effects.lifecycle import effect_timers_s, enter_effects, follow_effects
from autopilot.core.effects.pipelined import drop_declined, enter_starts, start_timers_s
from autopilot.core.effects.scrubbing import remember_holders
from autopilot.core.geometry.follow import enter_recuts, follow_recuts, recut_timers_s
from autopilot.core.idle.follow import enter_steps, remember_idle, settle_notices
from autopilot.core.intake.commands import command_timers_s, expire_rejections, remember_open_proposals
from autopilot.core.model.capability import Capability, Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.neighbours.follow import enter_trials, follow_neighbours, trial_timers_s
from autopilot.core.nodes.follow_idle_nodes import remember_idle_nodes, settle_offers
from autopilot.core.nodes.follow_requests import enter_requests, follow_requests
from autopilot.core.planning.losses import remember_stops, settle_stops
from autopilot.core.quota.past_use import remember_parts, remember_use
from autopilot.core.recovery.follow_cordons import enter_cordons, follow_cordons
from autopilot.core.recovery.follow_errors import follow_errors
from autopilot.core.recovery.follow_spending import remember_spending
from autopilot.core.replicas.follow import floor_timers_s, remember_services
from autopilot.core.sharing.follow import remember_profiles
from autopilot.core.sharing.follow_turns import enter_turns, follow_turns
from autopilot.core.trust.follow_promises import cap_notes, follow_promises, remember_promises
from autopilot.core.trust.follow_storms import count_acts, follow_failed, storm_notes, storm_timers_s

CAPABILITIES: tuple[Capability, ...] = (
    Capability(
        "effects",
        ("effects",),
        "first: all others read what is still under way; it finds what failed and what declined in this tick",
        absorb=follow_effects,
        blind=True,
        commit=enter_effects,
        timers=effect_timers_s,
    ),
    Capability(
        "pause",
        ("halt",),
        "after effects: it counts their failures; before geometry: a change that went wrong counts from the next tick",
        absorb=follow_failures,
        blind=True,
        timers=pause_timers_s,
    ),
    Capability(
        "storms",
        ("trust",),
        "after effects: it counts what failed; its notes come before those of promises",
        absorb=follow_failed,
        blind=True,
        commit=count_acts,
        timers=storm_timers_s,
        notes=storm_notes,
    ),
    Capability(
        "ledger",
        ("budget",),
        "after effects: work that declined to leave cools down",
        absorb=follow_ledger,
        blind=True,
        commit=enter_stops,
        timers=ledger_timers_s,
    ),
    Capability(
        "starts",
        ("starts",),
        "after effects: a start whose victim declined is dropped; before replicas: they read which starts stand",
        absorb=drop_declined,
        blind=True,
        commit=enter_starts,
        timers=start_timers_s,
    ),
    Capability(
        "people",
        ("people",),
        "anywhere: it reads its own slice",
        absorb=expire_rejections,
        commit=remember_open_proposals,
        timers=command_timers_s,
    ),
    Capability(
        "geometry",
        ("geometry", "effects", "halt"),
        "after effects and pause: it ends the effects of changes that are over; before all that read these",
        absorb=follow_recuts,
        commit=enter_recuts,
        timers=recut_timers_s,
    ),
    Capability(
        "errors",
        ("recovery",),
        "before cordons: it must learn of a node that a person opened before the cordon notes that it was opened",
        absorb=follow_errors,
        blind=True,
    ),
    Capability(
        "cordons",
        ("recovery",),
        "after effects, geometry and errors: it reads which cordons are under way",
        absorb=follow_cordons,
        commit=enter_cordons,
    ),
    Capability(
        "requests",
        ("nodes",),
        "anywhere: it reads its own slice",
        absorb=follow_requests,
        commit=enter_requests,
    ),
    Capability(
        "stops",
        ("losses",),
        "before promises: they deduct the losses that it finds",
        absorb=settle_stops,
        commit=remember_stops,
    ),
    Capability(
        "promises",
        ("trust",),
        "after stops: it reads their losses, and which stops are still awaited",
        absorb=follow_promises,
        commit=remember_promises,
        notes=cap_notes,
    ),
    Capability(
        "use",
        ("use",),
        "anywhere: it reads its own slice",
        absorb=remember_use,
        commit=remember_parts,
    ),
    Capability(
        "replicas",
        ("replicas",),
        "after starts: a service whose replica waits for a start is late",
        absorb=remember_services,
        timers=floor_timers_s,
    ),
    Capability(
        "idle",
        ("idle",),
        "after effects and geometry: a ceiling that is still asked for keeps its record",
        settle=settle_notices,
        absorb=remember_idle,
        commit=enter_steps,
    ),
    Capability(
        "spending",
        ("spending",),
        "anywhere: it reads its own slice",
        absorb=remember_spending,
    ),
    Capability(
        "idle nodes",
        ("nodes",),
        "anywhere: it reads its own slice",
        settle=settle_offers,
        commit=remember_idle_nodes,
    ),
    Capability(
        "profiles",
        ("profiles",),
        "anywhere: it reads its own slice",
        absorb=remember_profiles,
    ),
    Capability(
        "holders",
        ("holders",),
        "anywhere: it reads its own slice",
        absorb=remember_holders,
    ),
    Capability(
        "sharing",
        ("sharing",),
        "anywhere: it reads its own slice",
        absorb=follow_turns,
        commit=enter_turns,
    ),
    Capability(
        "neighbours",
        ("neighbours",),
        "after effects: it reads which pauses are under way",
        absorb=follow_neighbours,
        commit=enter_trials,
        timers=trial_timers_s,
    ),
    Capability(
        "intentions",
        ("plan",),
        "last: it replaces the plan of the tick before, which planning reads",
        commit=keep_intentions,
        timers=intention_timers_s,
    ),
)


def absorb(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after each capability has followed the tick."""
    for capability in CAPABILITIES:
        if capability.absorb is not None and (capability.blind or not tick.blind):
            memory = capability.absorb(memory, tick)
    return memory


def commit(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory after each capability has kept its part of the decision."""
    for capability in CAPABILITIES:
        if capability.commit is not None:
            memory = capability.commit(memory, planned)
    return memory

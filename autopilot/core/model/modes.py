"""Modes: the freedom of each action to act by itself, and its possible effects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, get_type_hints

from typing_extensions import Doc


class Mode(StrEnum):
    """The freedom of an action without a person, from none to full."""

    OFF = "off"
    OBSERVE = "observe"
    RECOMMEND = "recommend"
    APPROVE = "approve"
    AUTO = "auto"


LATEST_EDITION = 4
"""Edition of the shipped policies in this version (autopilot/policies/editions.py)."""
MODES = tuple(Mode)
MODE_UNIT = f"mode (0 {MODES[0]} .. {len(MODES) - 1} {MODES[-1]})"
"""Unit of the verdict of the guard `mode`; its value is an index of MODES."""


class Effect(StrEnum):
    """The effects of actions on the cluster. Several actions may share an effect."""

    ADMIT = "admit"  # start work on free GPUs
    FILL = "fill"  # start work in the gap before a reservation, and evict it for the reservation
    CONSOLIDATE = "consolidate"  # start work by moves alone
    MOVE = "move"  # move running work
    RECLAIM = "reclaim"  # evict or shrink work of other queues
    PREEMPT = "preempt"  # evict or shrink work of the same queue
    GROW = "grow"  # widen running work
    ROOM = "room"  # evict or shrink batch work for replicas of services
    CLEAR = "clear"  # move running work out of the way of expected work
    FLOOR = "floor"  # set the floor of a service
    STOP = "stop"  # stop work that cannot continue at its place
    CORDON = "cordon"  # keep every scheduler off a node, and let it back
    PROVISION = "provision"  # ask the autoscaler of the cluster for nodes
    OFFER = "offer"  # mark an idle node for removal by others
    SUSPEND = "suspend"  # stop work and keep it away
    RECUT = "recut"  # change the MIG geometry of idle capacity
    DRAIN = "drain"  # move work off a GPU or node before a change of its MIG geometry
    SHARE = "share"  # start work on shared GPUs, and turn nodes to sharing for it
    UNSHARE = "unshare"  # turn nodes back to whole GPUs
    NOTIFY = "notify"  # notify the owner of work
    MARK = "mark"  # note that work may be suspended
    PARK = "park"  # stop work until its owner resumes it
    ISOLATE = "isolate"  # pause work that may slow its neighbours, and move it away from them
    CEILING = "ceiling"  # bound the replicas of an idle service until its owner is back


@dataclass(frozen=True, slots=True, init=False)
class Does:
    """Annotation of a mode: the effects of its action."""

    effects: tuple[Effect, ...]

    def __init__(self, *effects: Effect) -> None:
        object.__setattr__(self, "effects", effects)


@dataclass(frozen=True, slots=True)
class Modes:
    """One mode per action, in the order of the table of actions."""

    admit_gang: Annotated[
        Mode, Does(Effect.ADMIT), Doc("start pending gangs that fit as a whole, and reserve room for those that do not")
    ] = Mode.RECOMMEND
    backfill: Annotated[
        Mode,
        Does(Effect.FILL),
        Doc("start work in gaps before a reservation; evict it when the reserved gang can start"),
    ] = Mode.RECOMMEND
    share: Annotated[
        Mode,
        Does(Effect.SHARE),
        Doc(
            "start work that allows it on GPUs shared by software, and turn nodes to sharing for it once they are "
            "empty, where their pool offers that"
        ),
    ] = Mode.RECOMMEND
    unshare: Annotated[
        Mode, Does(Effect.UNSHARE), Doc("turn shared nodes back to whole GPUs when nobody uses their shares")
    ] = Mode.RECOMMEND
    regeometry: Annotated[
        Mode,
        Does(Effect.RECUT, Effect.DRAIN),
        Doc(
            "change the MIG geometry of idle capacity for requests that wait and for those that are expected, in "
            "pools that state a MIG scope; where that is a GPU or a node, drain one of a pool at a time for requests "
            "that wait"
        ),
    ] = Mode.RECOMMEND
    notify_idle: Annotated[
        Mode, Does(Effect.NOTIFY), Doc("notify the owner of work that holds GPUs and does not use them")
    ] = Mode.RECOMMEND
    mark_idle: Annotated[
        Mode, Does(Effect.MARK), Doc("mark idle work inside a guarantee as open to suspension, after its notice")
    ] = Mode.RECOMMEND
    defragment: Annotated[
        Mode,
        Does(Effect.CONSOLIDATE, Effect.MOVE),
        Doc("move running gangs so that a waiting gang fits; every moved gang continues elsewhere"),
    ] = Mode.RECOMMEND
    suspend_idle: Annotated[
        Mode,
        Does(Effect.PARK),
        Doc("suspend idle work with a checkpoint, after its notice, while other work waits; its owner resumes it"),
    ] = Mode.RECOMMEND
    shrink_idle: Annotated[
        Mode,
        Does(Effect.CEILING),
        Doc(
            "scale an idle service down to what its owner keeps, after its notice, while other work waits; it has its "
            "replicas back when requests arrive"
        ),
    ] = Mode.RECOMMEND
    reclaim_borrowed: Annotated[
        Mode,
        Does(Effect.RECLAIM, Effect.MOVE),
        Doc("preempt work of queues above their share for a queue that is below its own share"),
    ] = Mode.RECOMMEND
    isolate: Annotated[
        Mode,
        Does(Effect.ISOLATE),
        Doc(
            "pause work that may slow its neighbours, for some minutes, to see whether they recover; move it away, or "
            "the work that it slows, once that has confirmed it"
        ),
    ] = Mode.RECOMMEND
    preempt: Annotated[
        Mode,
        Does(Effect.PREEMPT, Effect.MOVE),
        Doc("preempt work of lower priority in the same queue or, with time sharing, work of lower index"),
    ] = Mode.RECOMMEND
    make_room: Annotated[
        Mode,
        Does(Effect.ROOM, Effect.MOVE),
        Doc(
            "preempt or move batch work for replicas of services that a forecast calls for or that are late, or "
            "suspend idle work for them where `suspend_idle` may do that too"
        ),
    ] = Mode.RECOMMEND
    resize: Annotated[Mode, Does(Effect.GROW), Doc("grow elastic gangs into idle capacity")] = Mode.RECOMMEND
    scale_ahead: Annotated[
        Mode, Does(Effect.FLOOR), Doc("raise the replicas of a service before the forecast load arrives")
    ] = Mode.RECOMMEND
    defragment_ahead: Annotated[
        Mode,
        Does(Effect.CLEAR),
        Doc(
            "move running gangs so that a gang which the demand mix expects fits when it comes; in mode `auto` "
            "narrower gangs also leave nodes to it"
        ),
    ] = Mode.RECOMMEND
    replace: Annotated[
        Mode, Does(Effect.MOVE), Doc("move a gang away from the member that holds it up, where that pays")
    ] = Mode.RECOMMEND
    request_capacity: Annotated[
        Mode,
        Does(Effect.PROVISION),
        Doc("ask the autoscaler of the cluster for nodes of the pools in `capacity.pools`, for gangs that do not fit"),
    ] = Mode.RECOMMEND
    offer_idle: Annotated[
        Mode,
        Does(Effect.OFFER),
        Doc("mark nodes of the pools in `capacity.pools` that nothing needs as nodes that may be removed"),
    ] = Mode.RECOMMEND
    recover: Annotated[
        Mode,
        Does(Effect.STOP, Effect.CORDON),
        Doc(
            "stop gangs that lost members, that hang, or whose GPU or node is broken or about to be reclaimed, and "
            "start them again as a whole elsewhere; cordon a node whose error asks for its restart until it is repaired"
        ),
    ] = Mode.RECOMMEND
    enforce_limit: Annotated[
        Mode,
        Does(Effect.SUSPEND),
        Doc("suspend, after a warning, work past its run-time limit or of a tenant with runaway use"),
    ] = Mode.RECOMMEND

    def on(self, effect: Effect) -> bool:
        """True if an action with this effect has a mode above off."""
        return any(getattr(self, name) != Mode.OFF for name in ACTIONS_WITH[effect])

    def acts(self, effect: Effect) -> bool:
        """True if an action with this effect may act, by itself or after an approval."""
        return any(getattr(self, name) in {Mode.APPROVE, Mode.AUTO} for name in ACTIONS_WITH[effect])

    def auto(self, effect: Effect) -> bool:
        """True if every action with this effect may act by itself."""
        return all(getattr(self, name) == Mode.AUTO for name in ACTIONS_WITH[effect])


def _actions_with(effect: Effect) -> tuple[str, ...]:
    hints = get_type_hints(Modes, include_extras=True)
    return tuple(
        name
        for name, hint in hints.items()
        if any(isinstance(note, Does) and effect in note.effects for note in hint.__metadata__)
    )


ACTIONS_WITH: dict[Effect, tuple[str, ...]] = {effect: _actions_with(effect) for effect in Effect}
"""Names of the actions by effect."""

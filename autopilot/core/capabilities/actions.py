"""The actions, least disruptive first. One row each; the planner runs them in this order."""

from __future__ import annotations

from autopilot.core.effects.action import Action
from autopilot.core.geometry import regeometry
from autopilot.core.idle import mark_idle, notify_idle, shrink_idle, suspend_idle
from autopilot.core.neighbours import isolate
from autopilot.core.nodes import offer_idle, request_capacity
from autopilot.core.preemption import defragment, defragment_ahead, preempt, reclaim_borrowed
from autopilot.core.recovery import enforce_limit, recover
from autopilot.core.replicas import make_room, scale_ahead
from autopilot.core.sharing import share, unshare
from autopilot.core.sharing_time import resize
from autopilot.core.starting import admit_gang, backfill
from autopilot.core.stragglers import replace

ACTIONS: tuple[Action, ...] = (
    admit_gang.ACTION,  # start what fits whole; hold room for the head of the order
    backfill.ACTION,  # use the gaps before reservations; give them back when due
    share.ACTION,  # start work on shared GPUs; turn nodes that are empty, or get empty, to sharing
    unshare.ACTION,  # turn shared nodes back that nobody uses
    regeometry.ACTION,  # cut idle MIG capacity for what waits and what is expected
    notify_idle.ACTION,  # notify the owners of idle work
    mark_idle.ACTION,  # mark it as open to suspension
    defragment.ACTION,  # move running gangs so that one that waits fits
    suspend_idle.ACTION,  # suspend it while other work waits
    shrink_idle.ACTION,  # scale idle services down while other work waits
    reclaim_borrowed.ACTION,  # take back what a queue is owed
    isolate.ACTION,  # confirm work that slows its neighbours, and move it away
    preempt.ACTION,  # displace lower priority, or share time
    make_room.ACTION,  # displace batch work for replicas that are foreseen or late
    resize.ACTION,  # grow elastic gangs into what is left
    scale_ahead.ACTION,  # replicas before the load that is foreseen
    defragment_ahead.ACTION,  # move running gangs before the gang that is foreseen comes
    replace.ACTION,  # move gangs away from the member that holds them up
    request_capacity.ACTION,  # ask for nodes for what does not fit
    offer_idle.ACTION,  # offer nodes back that nothing needs
    recover.ACTION,  # stop what cannot go on where it is
    enforce_limit.ACTION,  # suspend what goes on for too long
)

"""The deeds, as one table: content of a proposal, request of an instruction, and words for a deed of unknown reason.

One file for each deed. A new deed is its file and a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopilot.core.effects.admit import AdmitChange, AdmitOperation
from autopilot.core.effects.evict import EvictChange, EvictOperation
from autopilot.core.effects.move import MoveChange
from autopilot.core.effects.pipeline import PipelineChange
from autopilot.core.geometry.drain import DrainChange
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.idle.mark import Mark
from autopilot.core.idle.notify import Notify
from autopilot.core.model.verb import Change, Operation
from autopilot.core.neighbours.pausing import Pause, Resume
from autopilot.core.nodes.offer import Offer
from autopilot.core.nodes.provision import Provision
from autopilot.core.recovery.cordon import Cordon
from autopilot.core.replicas.scale import Scale
from autopilot.core.reserving.reserve import ReserveChange
from autopilot.core.sharing.set_sharing import SetSharing
from autopilot.core.sharing_time.grow import GrowChange
from autopilot.core.sharing_time.resize_members import ResizeOperation


@dataclass(frozen=True, slots=True)
class Row:
    """A deed by its kind. One without a `change` is only instructed; one without an `operation` is never sent."""

    change: type[Change] | None
    operation: type[Operation] | None
    words: str  # of a proposal where no shipped action says it (autopilot/explain/cases.py)
    noun: str  # of an effect under way


VERBS: Mapping[str, Row] = {
    "admit": Row(AdmitChange, AdmitOperation, "start on {where}{after}", "start"),
    "pipeline": Row(PipelineChange, None, "start on {where}{after} by preempting or moving others: {victims}", "start"),
    "grow": Row(GrowChange, None, "grow to {where}", "growth"),
    "reserve": Row(ReserveChange, None, "hold room for it", "reservation"),
    "evict": Row(EvictChange, EvictOperation, "evict: {victims}", "eviction"),
    "resize": Row(None, ResizeOperation, "", "resize"),
    "move": Row(MoveChange, None, "move: {victims}", "move"),
    "scale": Row(Scale, Scale, "keep at least {replicas}", "floor"),
    "ceiling": Row(Ceiling, Ceiling, "keep at most {replicas}", "ceiling"),
    "recut": Row(RecutGpu, RecutGpu, "cut it anew", "change of geometry"),
    "drain": Row(DrainChange, None, "drain it: {victims}", "drain"),
    "cordon": Row(Cordon, Cordon, "cordon or uncordon it", "cordon"),
    "provision": Row(Provision, Provision, "ask for nodes for it", "request for nodes"),
    "offer": Row(Offer, Offer, "offer it back, or not any more", "offer"),
    "set_sharing": Row(SetSharing, SetSharing, "turn it to {config}", "change of sharing"),
    "pause": Row(Pause, Pause, "pause it at its next step boundary", "pause"),
    "resume": Row(Resume, Resume, "let it go on", "end of a pause"),
    "notify": Row(Notify, Notify, "notify its owner", "notice"),
    "mark": Row(Mark, None, "mark it as open to suspension", "mark"),
}

CHANGES: Mapping[str, type[Change]] = {kind: row.change for kind, row in VERBS.items() if row.change is not None}
"""What proposals may show, by kind."""
OPERATIONS: Mapping[str, type[Operation]] = {
    kind: row.operation for kind, row in VERBS.items() if row.operation is not None
}
"""What instructions may ask, by kind."""

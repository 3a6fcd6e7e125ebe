"""Starts that wait until their victims are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.records import Slot, Victim
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class Part:
    """One gang to start on `slots` once they are free."""

    workload: str
    incarnation: int
    slots: tuple[Slot, ...]
    uid: str = ""
    shape: str = ""  # digest of its request at the decision (core/model/identity.py)


@dataclass(frozen=True, slots=True)
class PipelinedStart:
    """A start that waits until its victims are gone (states: core/effects/pipelined.py).

    `parts` are the gang itself and the moving victims. A part leaves the tuple at the instruction of its start.
    """

    proposal_id: str
    action: str
    tenant: str
    workload: str  # the newcomer
    victims: tuple[Victim, ...]
    parts: tuple[Part, ...]
    since_s: Time
    deadline_s: Time
    contract: bool
    uid: str = ""  # of `workload`
    benefit_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    digest: str = ""  # of the proposal: its approval also holds for the starts


@dataclass(frozen=True, slots=True)
class StartsMemory:
    """Pipelined starts (core/effects/pipelined.py)."""

    pipelined_starts: tuple[PipelinedStart, ...] = ()
    # uid of a gang after a given-up pipelined start -> no new one before this time
    no_pipelined_until_s: Mapping[str, Time] = field(default_factory=dict)

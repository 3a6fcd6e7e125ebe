"""Decisions, policies and memories as bytes.

A decision repeats much of the previous one: proposals blocked by a mode recur each tick, and most refusals stay the
same. A repetition is stored as a number; refusals are columns that follow the workload rows as they move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import (
    Code,
    Decision,
    Instruction,
    Loss,
    Note,
    Outcome,
    Plan,
    Proposal,
    Realised,
    Refusals,
    Reservation,
    no_refusals,
)
from autopilot.records.journal.observations import ENCODER
from autopilot.records.journal.table_codec import (
    Packed,
    Rows,
    UnreadableError,
    apply_change,
    change,
    follow,
    pack_columns,
    read_whole,
    rows_by_key,
    unpack_columns,
    unpack_rows,
    whole,
)
from autopilot.records.variants import as_recorded, decoded, memory_of

DIGEST_BYTES = 8

_COLUMNS = ("workload", "code", "value", "threshold")
_PROPOSAL = msgspec.msgpack.Decoder(Proposal, dec_hook=decoded)
_RESERVATIONS = msgspec.msgpack.Decoder(tuple[Reservation, ...])
_INSTRUCTIONS = msgspec.msgpack.Decoder(tuple[Instruction, ...], dec_hook=decoded)
_OUTCOMES = msgspec.msgpack.Decoder(tuple[Outcome, ...])
_NOTES = msgspec.msgpack.Decoder(tuple[Note, ...])
_LOSSES = msgspec.msgpack.Decoder(tuple[Loss, ...])
_REALISED = msgspec.msgpack.Decoder(tuple[Realised, ...])
_POLICY = msgspec.msgpack.Decoder(Policy)
_CANONICAL = msgspec.msgpack.Encoder(enc_hook=ENCODER.enc_hook, order="deterministic")
_EMPTY = ENCODER.encode(())


def memory_bytes(memory: ControllerMemory) -> bytes:
    """A memory as bytes: equal memories give equal bytes, independent of their history.

    The fence is left out: it depends on the leader, not on the decisions. A memory that an earlier version recorded has
    the bytes of that version.
    """
    return _CANONICAL.encode(as_recorded(memory if memory.fence == 0 else replace(memory, fence=0)))


def read_memory(data: bytes) -> ControllerMemory:
    """The inverse of `memory_bytes`."""
    return memory_of(msgspec.msgpack.decode(data))


def policy_bytes(policy: Policy) -> bytes:
    """A policy as bytes; equal policies give equal bytes."""
    return _CANONICAL.encode(policy)


def read_policy(data: bytes) -> Policy:
    """The inverse of `policy_bytes`."""
    return _POLICY.decode(data)


def outcomes_bytes(outcomes: Sequence[Outcome]) -> bytes:
    """Outcomes as bytes."""
    return ENCODER.encode(tuple(outcomes))


def read_outcomes(data: bytes) -> tuple[Outcome, ...]:
    """The inverse of `outcomes_bytes`."""
    return _OUTCOMES.decode(data)


def digest(data: bytes) -> bytes:
    """A short digest of some content."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision of one tick, and its inputs."""

    decision: Decision
    instructions: tuple[Instruction, ...]
    policy: Policy
    policy_digest: bytes
    memory_digest: bytes  # of the memory used for the decision
    memory: ControllerMemory | None  # that memory, at the start of a segment
    fence: int


class DecisionEncoder:
    """Encodes decisions as bytes, each relative to the previous one."""

    def __init__(self) -> None:
        self._policy: tuple[Policy, bytes, bytes] | None = None
        self.restart()

    def restart(self) -> None:
        """Write the next decision whole, with its policy and its memory."""
        self._proposals: dict[bytes, int] = {}
        self._refusals: Packed | None = None
        self._codes: tuple[Code, ...] | None = None
        self._policy_written = b""
        self._whole = True

    def encode(
        self,
        policy: Policy,
        memory: ControllerMemory,
        decision: Decision,
        instructions: Sequence[Instruction],
        moved: Rows | None,
        lost: bool,
    ) -> bytes:
        """Encode one decision. `moved`: how workload rows moved since the previous tick; `lost`: unknown."""
        if self._policy is None or self._policy[0] is not policy:
            text = policy_bytes(policy)
            self._policy = (policy, text, digest(text))
        _, policy_text, policy_digest = self._policy
        remembered = memory_bytes(memory)
        plan = decision.plan
        parts: dict[str, Any] = {}
        if policy_digest != self._policy_written:
            parts["policy"] = policy_text
            self._policy_written = policy_digest
        if self._whole:
            parts["memory"] = remembered
            self._whole = False
        if memory.fence:
            parts["fence"] = memory.fence
        if decision.halted:
            parts["halted"] = decision.halted
        if decision.notes:
            parts["notes"] = ENCODER.encode(decision.notes)
        if decision.losses:
            parts["losses"] = ENCODER.encode(decision.losses)
        if decision.realised:
            parts["realised"] = ENCODER.encode(decision.realised)
        if plan.proposals or self._proposals:
            parts["proposals"] = self._pack_proposals(plan.proposals)
        if plan.reservations:
            parts["reservations"] = ENCODER.encode(plan.reservations)
        if plan.released:
            parts["released"] = plan.released
        if instructions:
            parts["instructions"] = ENCODER.encode(tuple(instructions))
        self._pack_refusals(plan.refusals, moved, lost, parts)
        head = [decision.tick, decision.now_s, policy_digest, digest(remembered), parts]
        return ENCODER.encode(head)

    def _pack_proposals(self, proposals: Sequence[Proposal]) -> list[int | bytes]:
        encoded = [ENCODER.encode(proposal) for proposal in proposals]
        packed = [self._proposals.get(text, text) for text in encoded]
        self._proposals = {text: at for at, text in enumerate(encoded)}
        return packed

    def _pack_refusals(self, refusals: Refusals, moved: Rows | None, lost: bool, parts: dict[str, Any]) -> None:
        if refusals.codes != self._codes:
            parts["codes"] = refusals.codes
            self._codes = refusals.codes
        packed = pack_columns((refusals.workload, refusals.code, refusals.value, refusals.threshold))
        part = None
        if self._refusals is not None and not lost:
            before = follow(self._refusals, moved)
            rows = rows_by_key(unpack_columns(before)[0], refusals.workload)
            part = None if rows is None else change(before, packed, rows)
            if part is not None and moved is not None:
                parts["moved"] = moved.pack()
        if part is None:
            part = whole(packed, _COLUMNS)
        if part:
            parts["refusals"] = part
        self._refusals = packed


class DecisionDecoder:
    """The inverse of `DecisionEncoder`; without `refusals` every plan has none, which reads faster."""

    def __init__(self, *, refusals: bool = True) -> None:
        self._with_refusals = refusals
        self._proposals: list[Proposal] = []
        self._refusals: Packed | None = None
        self._codes: tuple[Code, ...] = ()
        self._policies: dict[bytes, Policy] = {}

    def decode(self, data: bytes) -> Decided:
        """The decision that was encoded; requires the preceding ones since the last keyframe."""
        tick, now_s, policy_digest, memory_digest, parts = msgspec.msgpack.decode(data)
        if "policy" in parts:
            self._policies[policy_digest] = read_policy(parts["policy"])
        if policy_digest not in self._policies:
            raise UnreadableError("a decision refers to a missing policy")
        if "proposals" in parts:
            before = self._proposals
            self._proposals = [
                before[text] if isinstance(text, int) else _PROPOSAL.decode(text) for text in parts["proposals"]
            ]
        plan = Plan(
            proposals=tuple(self._proposals),
            refusals=self._read_refusals(parts) if self._with_refusals else no_refusals(),
            reservations=_RESERVATIONS.decode(parts.get("reservations", _EMPTY)),
            released=tuple(parts.get("released", ())),
        )
        decision = Decision(
            tick,
            now_s,
            plan,
            parts.get("halted", ""),
            _NOTES.decode(parts.get("notes", _EMPTY)),
            _LOSSES.decode(parts.get("losses", _EMPTY)),
            _REALISED.decode(parts.get("realised", _EMPTY)),
        )
        return Decided(
            decision=decision,
            instructions=_INSTRUCTIONS.decode(parts.get("instructions", _EMPTY)),
            policy=self._policies[policy_digest],
            policy_digest=policy_digest,
            memory_digest=memory_digest,
            memory=read_memory(parts["memory"]) if "memory" in parts else None,
            fence=parts.get("fence", 0),
        )

    def _read_refusals(self, parts: dict[str, Any]) -> Refusals:
        if "codes" in parts:
            self._codes = tuple(map(Code, parts["codes"]))
        if "moved" in parts and self._refusals is not None:
            self._refusals = follow(self._refusals, unpack_rows(parts["moved"]))
        part = parts.get("refusals")
        if part is not None and len(part) == 4:
            self._refusals, _ = read_whole(part)
        elif self._refusals is None:
            raise UnreadableError("refusals refer to a missing tick")
        elif part is not None:
            self._refusals = apply_change(self._refusals, part)
        return Refusals(self._codes, *unpack_columns(self._refusals))

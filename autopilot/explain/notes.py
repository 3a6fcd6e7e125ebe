"""The words of a note: the format string of its code, filled with the facts on the record.

Fields of a format string: `subject`, `value`, and each fact by its name. A number with a noun is written as
`{gpus:GPU}`: `1 GPU`, `8 GPUs`. The words of the notes of an action are in its file (`Action.notes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.records import Evidence, Gap, Note, NoteCode
from autopilot.core.model.units import counted
from autopilot.explain.cases import Fields, facts_of

_HANG = "{subject} seems to hang and is not stopped: "

WORDS: Mapping[str, str] = {
    NoteCode.CLOCK_MOVED: "the clock moved by {value}; every timer moves with it",
    NoteCode.RESUME_REFUSED: "resume by {who} is refused: it may have been received before the kill; send it again",
    NoteCode.APPROVAL_REFUSED: "approve by {who} is refused: {subject} is not proposed now; look again",
    NoteCode.REJECTION_REFUSED: "reject by {who} is refused: {subject} is not proposed now; look again",
    NoteCode.REVOKE_REFUSED: "revoke by {who} is refused: there is no rejection '{subject}'",
    NoteCode.CONFIRM_REFUSED: "confirm by {who} is refused: no source named '{subject}' is suspected",
    NoteCode.VICTIM_CANNOT_SAVE: "{subject} cannot save within its grace and stays; the start of {start_of} there is "
    "given up",
    NoteCode.NO_TURN_TO_SAVE: "{subject} has no turn to save before it leaves; it loses {value}",
    NoteCode.STORM_BEGAN: "the action {subject} reversed itself, failed or cut GPUs anew {events:time} within an hour "
    "(limit {limit}) and is paused until {calm} have passed without such an event, or a person resumes the "
    "autopilot; proposals by contract and stops of broken work continue",
    NoteCode.STORM_ENDED: "the storm of the action {subject} has ended; it continues",
    NoteCode.ACTION_CAPPED: "the action {subject} may only recommend from now on: {cases:finished case} realised "
    "{realised} of {promised} promised; proposals by contract and stops of broken work continue, and a person ends it "
    "with `autopilot lift {subject}`",
    NoteCode.CAP_LIFTED: "the cap of the action {subject} is lifted; it is judged by the cases that finish from now on",
    NoteCode.LIFT_REFUSED: "lift by {who} is refused: the action '{subject}' is not capped",
    NoteCode.EFFECT_WAITS: "{effect} {subject} of {proposal} is not sent yet: {why}",
    NoteCode.EFFECT_WITHDRAWN: "{effect} {subject} of {proposal} is withdrawn: {why}",
    NoteCode.START_GIVEN_UP: "the start of {subject} is given up after {value}: "
    "{leaving:gang that it waits for still holds GPUs|gangs that it waits for still hold GPUs}; GPUs that come free "
    "later count for the next decision, and nothing more is stopped in their place",
    NoteCode.PROTECTION_LENT: "what {subject} declares protects it until the owner of its GPUs returns, because they "
    "are above the guarantee of its queue; from its next start on it is protected inside that guarantee",
    NoteCode.PROTECTION_KEPT: "protected work of queue {subject} held {gpus:GPU} above its guarantee before the "
    "autopilot saw work start; its protection holds against the owner of these GPUs, until its next start",
    NoteCode.ADVANCE_HELD: "advance reservation {subject} holds {gpus:GPU}; what is not used is released in {value}",
    NoteCode.ADVANCE_NOT_FREE: "advance reservation {subject} holds {gpus:GPU}, {not_free} of them not free yet; what "
    "is not used is released in {value}",
    NoteCode.REPLICAS_HELD: "{gpus:GPU} are kept for {replicas:replica} that {subject} is expected to need in {value}; "
    "work that ends before may use them",
    NoteCode.INSTANCES_HELD: "{instances:MIG instance} {profile} are kept for {replicas:replica} that {subject} is "
    "expected to need in {value}; work that ends before may use them",
    NoteCode.GPU_QUARANTINED: "{subject} is quarantined, the change of its MIG geometry went wrong: {why}; it takes "
    "no new work until its node shows one legal geometry in several lists in a row, or a person releases it with "
    "`autopilot release {subject}`",
    NoteCode.DRAIN_GIVEN_UP: "the drain of {subject} for another MIG geometry is given up after {value}: work is still "
    "in its way; it takes new work again",
    NoteCode.GPU_USED_AGAIN: "{subject} is used again: its node showed one legal geometry in {value:list} in a row",
    NoteCode.RELEASE_REFUSED: "release by {who} is refused: GPU '{subject}' is not quarantined",
    NoteCode.HANG_TOO_MANY: _HANG + "{quiet} of {gangs:gang} measured by {source} do nothing at once; its GPUs "
    "did nothing for {value}",
    NoteCode.HANG_FEW_AT_WORK: _HANG + "{source} shows {at_work} of {others:other GPU} in use at work; its GPUs "
    "did nothing for {value}",
    NoteCode.HANG_DARK_NODE: _HANG
    + "{source} shows nothing else at work on {node}, where other work runs; its GPUs did "
    "nothing for {value}",
    NoteCode.NO_FORECAST: "no floor is changed for {subject}: there is no forecast for it",
    NoteCode.FORECAST_ABSTAINS: "no floor is changed for {subject}: the forecast abstains: {reason}",
    NoteCode.REPLICA_LOAD_UNKNOWN: "no floor is changed for {subject}: the load that a replica can serve is not known "
    "yet",
    NoteCode.LOAD_UNKNOWN: "no floor is changed for {subject}: its load is unknown or stale",
}

NOTES: Mapping[str, str] = {**WORDS, **{case.code: case.words for action in ACTIONS for case in action.notes}}
"""The words of every note, by code."""


def note_words(note: Note) -> str:
    """A note as a sentence."""
    value = () if note.value is None else (Evidence("value", note.value, note.unit),)
    words = NOTES.get(note.code, "{code}: {subject} {value}")
    return words.format_map(Fields({**facts_of((*value, *note.facts)), "subject": note.subject, "code": note.code}))


MOST_GAPS = 10
"""Gaps in the list; the rest is in the JSON."""


def gap_lines(gaps: Sequence[Gap]) -> list[str]:
    """One line for each value that a source should have delivered and that is not used, with the reason."""
    lines = [
        f"gap: {' of '.join(part for part in (gap.signal, gap.object_id or gap.source) if part)}: {gap.reason}"
        for gap in gaps[:MOST_GAPS]
    ]
    return lines + ([f"and {counted(len(gaps) - MOST_GAPS, 'more gap')}"] if len(gaps) > MOST_GAPS else [])

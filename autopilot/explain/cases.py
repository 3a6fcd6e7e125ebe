"""The words of a proposal: the format string of its case, filled with the facts on the record.

Fields of a format string: `where` (the GPUs it gets), `after` (how long it waited), `taken` (what its victims lose),
`victims` (the first of them, by name), `workload`, `tenant`, `replicas`, and each evidence by its name. A number with a
noun is written as `{gpus:GPU}`: `1 GPU`, `8 GPUs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from autopilot.core.actions import ACTIONS
from autopilot.core.model.records import Evidence, Proposal
from autopilot.core.model.units import counted, format_duration, format_gpu_s
from autopilot.core.planning.action import cases_of
from autopilot.core.planning.draft import Case

CASES = cases_of(ACTIONS)

_UNKNOWN = {
    "admit": "start on {where}{after}",
    "pipeline": "start on {where}{after}, when others have made room: {victims}",
    "grow": "grow to {where}",
    "reserve": "hold room for it",
    "evict": "evict: {victims}",
    "move": "move: {victims}",
    "scale": "keep at least {replicas}",
    "ceiling": "keep at most {replicas}",
    "recut": "cut it anew",
    "drain": "drain it: {victims}",
    "cordon": "cordon or uncordon it",
    "provision": "ask for nodes for it",
    "offer": "offer it back, or not any more",
}
"""Words for proposals that no shipped action makes, by kind."""


def case_of(proposal: Proposal) -> Case:
    """The case of a proposal on record."""
    key = proposal.action, proposal.kind, proposal.reason
    return CASES.get(key) or Case(*key, words=_UNKNOWN.get(proposal.kind, proposal.kind))


def case_words(proposal: Proposal, fields: Mapping[str, str]) -> str:
    """Why a proposal was made."""
    return _filled(case_of(proposal).words, proposal, fields)


def contract_words(proposal: Proposal, fields: Mapping[str, str]) -> str:
    """Why its victims leave by contract."""
    return _filled(case_of(proposal).contract or "its victims were promised to leave", proposal, fields)


def _filled(words: str, proposal: Proposal, fields: Mapping[str, str]) -> str:
    return words.format_map(Fields({**facts_of(proposal.evidence), **fields}))


@dataclass(frozen=True, slots=True)
class Amount:
    """A number in a format string: in words, or as a count where the string gives the noun."""

    words: str
    value: float

    def __format__(self, noun: str) -> str:
        """`{gpus}` is the words, `{gpus:GPU}` the count with its noun."""
        if not noun or isfinite(self.value):
            return counted(self.value, noun) if noun else self.words
        one, _, many = noun.partition("|")
        return f"{self.words} {many or one + 's'}"


class Fields(dict[str, object]):
    """Fields of a format string; a fact that the record lacks reads as unknown."""

    def __missing__(self, _key: str) -> Amount:
        return Amount("unknown", float("nan"))


def facts_of(evidence: Iterable[Evidence]) -> dict[str, object]:
    """The facts of a record in words, by name."""
    return {
        each.name: each.value if isinstance(each.value, str) else Amount(fact_words(each), float(each.value))
        for each in evidence
    }


def fact_words(evidence: Evidence) -> str:
    """The value of an evidence, with its unit where that is a time or GPU-seconds."""
    value = evidence.value
    if isinstance(value, str):
        return value
    for unit, words in _IN_UNITS.items():
        if evidence.unit == unit or evidence.unit.startswith(f"{unit} "):
            return words(float(value))
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


_IN_UNITS: dict[str, Callable[[float], str]] = {"s": format_duration, "GPU-s": format_gpu_s}

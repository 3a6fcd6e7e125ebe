"""The words of a proposal: the format string of its case, filled with the facts on the record.

Fields of a format string: `where` (its GPUs), `after` (` again` for a restart, and the time of submission), `taken`
(what its victims lose), `victims` (the first of them, by name), `workload`, `tenant`, `replicas`, and each evidence by
its name. A number with a noun is written as `{gpus:GPU}`: `1 GPU`, `8 GPUs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.verbs import VERBS
from autopilot.core.effects.action import cases_of
from autopilot.core.effects.draft import Case
from autopilot.core.model.records import Evidence, Proposal
from autopilot.core.model.units import counted, format_clock, format_duration, format_gpu_s, format_ratio, number

CASES = cases_of(ACTIONS)


def case_of(proposal: Proposal) -> Case:
    """The case of a proposal on record."""
    key = proposal.action, proposal.kind, proposal.reason
    return CASES.get(key) or Case(*key, words=VERBS[proposal.kind].words)


def case_words(proposal: Proposal, fields: Mapping[str, str]) -> str:
    """Reason for a proposal."""
    return _filled(case_of(proposal).words, proposal, fields)


def contract_words(proposal: Proposal, fields: Mapping[str, str]) -> str:
    """Reason for the eviction of its victims by contract."""
    return _filled(case_of(proposal).contract or "its victims were promised to leave", proposal, fields)


def _filled(words: str, proposal: Proposal, fields: Mapping[str, str]) -> str:
    return words.format_map(Fields({**facts_of(proposal.evidence), **fields}))


IN_UNITS: Mapping[str, Callable[[float], str]] = {
    "s": format_duration,
    "GPU-s": format_gpu_s,
    "of": format_ratio,
    "time": format_clock,
}
"""Numbers told in words, by the first word of their unit; `of the outcomes` is a ratio, `time` a moment."""


def quantity(value: float, unit: str) -> str:
    """A number with its unit: `3 min since first proposed`, `6.7 GPU-min`, `86.4 % of the outcomes`."""
    first, _, what = unit.partition(" ")
    show = IN_UNITS.get(first)
    if show is None:
        return f"{number(value)} {unit}".strip()
    return f"{show(value)} {unit if first == 'of' else what}".strip()


@dataclass(frozen=True, slots=True)
class Amount:
    """A number in a format string: in words, or as a count if the string gives the noun."""

    words: str
    value: float

    def __format__(self, noun: str) -> str:
        """`{gpus}` is the words, `{gpus:GPU}` the count with its noun, `{lost:GPU-s}` the number in its unit."""
        if not noun:
            return self.words
        if isfinite(self.value):
            return IN_UNITS[noun](self.value) if noun in IN_UNITS else counted(self.value, noun)
        one, _, many = noun.partition("|")
        return self.words if noun == "of" else f"{self.words} {noun if noun in IN_UNITS else many or one + 's'}"


class Fields(dict[str, object]):
    """Fields of a format string; a fact missing from the record reads as unknown."""

    def __missing__(self, _key: str) -> Amount:
        return Amount("unknown", float("nan"))


def facts_of(evidence: Iterable[Evidence]) -> dict[str, object]:
    """The facts of a record in words, by name."""
    return {
        each.name: fact_words(each) if isinstance(each.value, str) else Amount(fact_words(each), float(each.value))
        for each in evidence
    }


def fact_words(evidence: Evidence) -> str:
    """The value of an evidence; a time, GPU time or a ratio in words."""
    value = evidence.value
    if isinstance(value, str):
        return ", ".join(map(owner_words, value.split(", "))) if evidence.name in {"owner", "owners"} else value
    show = IN_UNITS.get(evidence.unit.partition(" ")[0], number)
    return show(float(value))


def owner_words(owner: str) -> str:
    """`TENANT/USER`; `tenant TENANT (owner unknown)` without a stated user."""
    tenant, slash, user = owner.partition("/")
    return owner if user or not slash else f"tenant {tenant} (owner unknown)"


def with_worst(expected_gpu_s: float, worst_gpu_s: float) -> str:
    """The expected loss, and the worst case if it is more: `6.7 GPU-min, worst case 2.2 GPU-h`."""
    expected, worst = format_gpu_s(expected_gpu_s), format_gpu_s(worst_gpu_s)
    return f"{expected}, worst case {worst}" if worst_gpu_s > expected_gpu_s and worst != expected else expected

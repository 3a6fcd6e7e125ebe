"""The workload contract: what a job says of itself, what is assumed where it is silent, and what is refused.

`parse_contract` is the door. `tree` holds the fields with their limits and meaning, `reading` turns texts into
values, `inference` fills the gaps, `rules` finds what contradicts. Columns of job files (simulator/traces) take
their limits and their contradictions from here.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopilot.contract.inference import NOTHING_KNOWN, Facts, build, infer, preemptible_by_class
from autopilot.contract.reading import Problem, read
from autopilot.contract.rules import contradictions
from autopilot.contract.tree import (
    CENTURY_S,
    LEVEL_OF,
    MOST_GPUS,
    PREFIX,
    Contract,
    ContractField,
    Domain,
    Level,
    Trust,
    contract_fields,
)

__all__ = [
    "CENTURY_S",
    "LEVEL_OF",
    "MOST_GPUS",
    "NOTHING_KNOWN",
    "PREFIX",
    "Contract",
    "ContractField",
    "Domain",
    "Facts",
    "Level",
    "Problem",
    "Trust",
    "contract_fields",
    "contradictions",
    "parse_contract",
    "preemptible_by_class",
]


def parse_contract(values: Mapping[str, str], facts: Facts = NOTHING_KNOWN) -> Contract | tuple[Problem, ...]:
    """The contract that annotations state, or everything that is wrong with them.

    `values` are annotations by full name (`gpu-autopilot.io/min-members`: "4"); those of others are passed over.
    Values are judged first; where each can be used, what they say against each other, the pods and the cluster.
    """
    said, problems = read(values)
    if problems:
        return tuple(problems)
    wrong = contradictions(said, facts)
    if wrong:
        return wrong
    assumed = tuple(found.key for found in contract_fields() if found.key not in said)
    return build(infer(said, facts), assumed)

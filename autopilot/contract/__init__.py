"""The workload contract: declared values, inferred ones for missing declarations, and refusals.

`parse_contract` is the entry point. `tree` holds the fields with their limits and meaning, `reading` turns texts into
values, `inference` fills in missing values, and `rules` finds contradictions. The columns of job files
(simulator/traces) take their limits and rules from here.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopilot.contract.inference import NOTHING_KNOWN, Facts, build, infer, preemptible_by_class, share_by_class
from autopilot.contract.reading import LAST_CHECKPOINT, Problem, read
from autopilot.contract.rules import contradictions
from autopilot.contract.tree import (
    CENTURY_S,
    MOST_GPUS,
    PREFIX,
    Contract,
    ContractField,
    contract_fields,
)
from autopilot.contract.vocabulary import LEVEL_OF, TRUST_OF, Domain, Level, Trust, stated_sharing

__all__ = [
    "CENTURY_S",
    "LAST_CHECKPOINT",
    "LEVEL_OF",
    "MOST_GPUS",
    "NOTHING_KNOWN",
    "PREFIX",
    "TRUST_OF",
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
    "share_by_class",
    "stated_sharing",
]


def parse_contract(values: Mapping[str, str], facts: Facts = NOTHING_KNOWN) -> Contract | tuple[Problem, ...]:
    """The declared contract of annotations, or all problems with them.

    `values` are annotations by full name (`gpu-autopilot.io/min-members`: "4"); those with another prefix are ignored.
    Single values are checked first. If all are valid, they are checked against each other, the pods and the cluster.
    """
    stated, problems = read(values)
    if problems:
        return tuple(problems)
    wrong = contradictions(stated, facts)
    if wrong:
        return wrong
    assumed = tuple(found.key for found in contract_fields() if found.key not in stated)
    return build(infer(stated, facts), assumed)

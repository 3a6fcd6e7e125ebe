"""Annotations and what becomes of them, for the tests of the workload contract."""

from __future__ import annotations

from autopilot.contract import NOTHING_KNOWN, PREFIX, Contract, Facts, Problem, parse_contract

H100 = Facts(gpu_models=("H100-80GB", "T4"))


def ours(**values: str) -> dict[str, str]:
    """Annotations of ours: `min_members` for `gpu-autopilot.io/min-members`."""
    return {PREFIX + name.replace("_", "-"): text for name, text in values.items()}


def contract(facts: Facts = NOTHING_KNOWN, **values: str) -> Contract:
    """The contract of annotations that can be used."""
    found = parse_contract(ours(**values), facts)
    assert isinstance(found, Contract), [str(each) for each in found]
    return found


def problems(facts: Facts = NOTHING_KNOWN, **values: str) -> tuple[Problem, ...]:
    """What is wrong with annotations that cannot be used."""
    found = parse_contract(ours(**values), facts)
    assert isinstance(found, tuple)
    return found


def refusal(facts: Facts = NOTHING_KNOWN, **values: str) -> str:
    """The one problem of annotations."""
    found = problems(facts, **values)
    assert len(found) == 1, [str(each) for each in found]
    return str(found[0])

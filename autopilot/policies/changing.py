"""Other values for fields of a policy, by path, checked like a policy file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Policy, check_policy
from autopilot.policies.checking import checked_policy, show
from autopilot.policies.dialect import read_yaml
from autopilot.policies.policy_tree import EXPERT, is_expert, policy_fields


def changed_policy(policy: Policy, values: Mapping[str, Any], source: str) -> Policy:
    """`policy` with other values of the fields in `values`, by path. Raises `InputError` as `load_policy`."""
    if not values:
        return policy
    spec: dict[str, Any] = {}
    known = {field.path for field in policy_fields()}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        place = spec.setdefault(EXPERT, {}) if path in known and is_expert(path) else spec
        if place is spec:
            for step in section.split(".") if section else ():
                place = place.setdefault(step, {})
        place[path if place is spec.get(EXPERT) else name] = value
    return made_of(spec, source, policy)


def read_changes(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """The values of `FIELD=VALUE` texts by field, each value as a policy file may write it. Raises `InputError`."""
    found: dict[str, Any] = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals or not field.strip() or not value.strip():
            raise InputError(
                f"{flag}: {show(text)} is not allowed; write FIELD=VALUE, for example tenancy.guarantee=elastic"
            )
        if field.strip() in found:
            raise InputError(f"{flag}: {field.strip()} is given twice; leave one out")
        found[field.strip()] = read_yaml(value, f"{flag}: {field.strip()}")
    return found


def made_of(spec: Mapping[str, Any], source: str, base: Policy) -> Policy:
    """The policy that `spec` (as read from YAML) makes of `base`. Raises `InputError` as `load_policy`."""
    policy, problems = checked_policy(spec, base)
    if policy is None:
        many = f"{len(problems)} invalid fields\n  " if len(problems) > 1 else ""
        raise InputError(f"{source}: {many}" + "\n  ".join(problems))
    try:
        check_policy(policy)
    except InputError as error:
        raise InputError(f"{source}: {error}{_from_base(str(error), spec, base)}") from error
    return policy


def _from_base(message: str, spec: Mapping[str, Any], base: Policy) -> str:
    """The fields of a message missing from the file, with their base."""
    missing = [field.path for field in policy_fields() if field.path in message and not _is_named(spec, field.path)]
    if not missing:
        return ""
    come = "comes" if len(missing) == 1 else "come"
    return f"; {' and '.join(missing)} {come} from its base, the shipped policy {base.name}"


def _is_named(spec: Mapping[str, Any], path: str) -> bool:
    if path in (spec.get(EXPERT) or {}):
        return True
    found: Any = spec
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found is not None

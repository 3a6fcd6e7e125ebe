"""From an operator's policy file to a `Policy`, and back.

A policy is a shipped one (a YAML file in `autopilot/policies`), a file with the bare tree, or a Kubernetes
AutopilotPolicy object with the tree as its `spec`. Fields absent from a file come from its `base`.
`autopilot.core.model.policy` defines the fields, their limits and their meaning in one place; pydantic validates the
values. pydantic and yaml are imported on first use, to keep the command line fast.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import LATEST_EDITION
from autopilot.core.model.policy import Policy
from autopilot.policies.changing import changed_policy, made_of
from autopilot.policies.checking import nearest, show
from autopilot.policies.dialect import read_yaml, write_yaml
from autopilot.policies.editions import as_of
from autopilot.policies.policy_tree import (
    EXPERT,
    duration_text,
    is_duration,
    is_expert,
    plain,
    policy_fields,
    value_text,
)

API_VERSION = "gpu-autopilot.io/v1alpha1"
KIND = "AutopilotPolicy"
DEFAULT_BASE = "recommend"
GONE = {
    "admission": "autopilot, with the modes of what stops running work off",
    "defragment-ahead": "autopilot, which moves work ahead",
    "elastic": "autopilot, and state of the queues that their guarantee is elastic, or of all of them with "
    "tenancy.guarantee: elastic",
    "reactive": "autopilot, with the mode of replicas ahead of their load off",
    "reclaim-idle": "autopilot, which takes back idle GPUs",
    **dict.fromkeys(
        ("regeometry", "regeometry-gpu", "regeometry-node"),
        "autopilot, which changes MIG geometries in pools that state a MIG scope",
    ),
}
"""Policies that earlier versions shipped, and what to write instead."""
MAX_BYTES = 1 << 20  # a policy fits on a page; a larger file is something else, or endless


# --- reading --------------------------------------------------------------------------------------


@functools.cache
def policy_names() -> tuple[str, ...]:
    """Names of the shipped policies, sorted."""
    folder = resources.files("autopilot.policies")
    return tuple(sorted(Path(f.name).stem for f in folder.iterdir() if f.name.endswith(".yaml")))


@functools.cache
def shipped_policy(name: str) -> Policy:
    """The shipped policy of that name. Raises `InputError` with the list of names if there is none."""
    if name in GONE:
        raise InputError(f"policy {name} is not shipped any more; write {GONE[name]}")
    if name not in policy_names():
        near = nearest(name, policy_names())
        raise InputError(
            f"unknown policy {show(name)}{near}; give one of {', '.join(policy_names())}, or the path of a YAML file"
        )
    text = resources.files("autopilot.policies").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return _policy_of(text, f"shipped policy {name}", name, Policy())


def load_policy(source: str | Path, under: Mapping[str, Any] | None = None) -> Policy:
    """The policy of a shipped name or of a YAML file (a `Path` is always a file).

    `under` (field path -> value) is put on top of the shipped policy and stands under what the file sets. A policy
    without a name is named after its file. Raises `InputError` naming the file and, for each invalid field, its path,
    its value and the allowed values.
    """
    if isinstance(source, str) and source in policy_names():
        return changed_policy(shipped_policy(source), under or {}, source)
    path = Path(source)
    try:
        content = _read(path)
    except InputError:
        if isinstance(source, str) and len(path.parts) <= 1 and not path.suffix:  # intended as a name
            shipped_policy(source)
        raise
    return _policy_of(content, str(path), path.stem, None, under or {})


def parse_policy(text: str | bytes, source: str, name: str = "", edition: int = LATEST_EDITION) -> Policy:
    """The policy in a YAML text; errors name `source`, and `name` is used if the text has none.

    `edition`: that of the installation (autopilot/policies/editions.py). Raises `InputError` as `load_policy`.
    """
    return _policy_of(text, source, name, None, edition=edition)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe would wait for its writer
            raise InputError(f"{path}: the policy file is a pipe or a device; give a file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: the policy file cannot be read: {why}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: over {MAX_BYTES >> 20} MiB, too large for a policy file; give another file")
    return content


def _policy_of(
    text: str | bytes,
    source: str,
    name: str,
    base: Policy | None,
    under: Mapping[str, Any] | None = None,
    edition: int = LATEST_EDITION,
) -> Policy:
    try:
        content = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    document = read_yaml(content, source)
    if document is None:
        raise InputError(f"{source}: the policy file is empty; set at least one field, as in docs/policy.md")
    if not isinstance(document, dict):
        raise InputError(f"{source}: {show(document)} is not a policy; it must be a mapping of fields")
    spec, object_name = _unwrap(document, source)
    told = spec.get("edition")
    base = as_of(_base_of(spec, source, base), told if isinstance(told, int) and told > 0 else edition)
    base = changed_policy(base, under or {}, source)
    if "name" not in spec:
        spec["name"] = object_name or name or base.name
    return made_of(spec, source, base)


def _unwrap(document: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """The bare tree (a copy) and the object's name, `""` for a file with the bare tree."""
    if not document.keys() & {"apiVersion", "kind", "metadata", "spec"}:
        return dict(document), ""
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) != wanted:
            raise InputError(f"{source}: {key}: {show(document.get(key))} is not allowed; it must be {wanted}")
    known = ("apiVersion", "kind", "metadata", "spec", "status")
    if strange := [key for key in document if key not in known]:
        fix = "the fields of the policy belong under spec"
        raise InputError(f"{source}: {strange[0]}: no such field of a Kubernetes object; {fix}")
    metadata, spec = document.get("metadata"), document.get("spec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"{source}: metadata.name: {show(name)} is not allowed; it must be a text")
    if not isinstance(spec, dict):
        raise InputError(f"{source}: spec: {show(spec)} is not allowed; it must be a mapping of fields")
    return dict(spec), name


def _base_of(spec: dict[str, Any], source: str, base: Policy | None) -> Policy:
    """The policy with the values of missing fields; removes the key `base` from `spec`."""
    name = spec.pop("base", None if base else DEFAULT_BASE)
    if name is None and base:
        return base
    if isinstance(name, str) and name in GONE:
        raise InputError(f"{source}: base: {name} is not shipped any more; write {GONE[name]}")
    if name not in policy_names():
        allowed = ", ".join(policy_names())
        near = nearest(name, policy_names())
        raise InputError(f"{source}: base: {show(name)} is not allowed{near}; it takes one of {allowed}")
    return shipped_policy(name)


# --- writing and comparing ------------------------------------------------------------------------


def policy_to_yaml(policy: Policy, changed_only_against: str | None = None) -> str:
    """The policy as a file for `load_policy` (which reads back an equal one), durations as `15m`.

    With the name of a shipped policy, the file names that as its base and only the differing fields (and its own name).
    Raises `InputError` for an unknown name.
    """
    base = shipped_policy(changed_only_against) if changed_only_against else None
    written = _readable(policy, "", base)
    head = {"name": policy.name, "base": changed_only_against} if base else {}
    return write_yaml(head | expert_apart(written))


def expert_apart(written: Mapping[str, Any]) -> dict[str, Any]:
    """A policy by sections, in plain values, with its expert fields under `expert`, by path."""
    chosen: dict[str, Any] = {key: value for key, value in written.items() if key == "base"}
    expert: dict[str, Any] = {}
    for field in policy_fields():
        section, _, name = field.path.rpartition(".")
        there = written.get(section, {}) if section else written
        if name in there:
            place = expert if is_expert(field.path) else chosen.setdefault(section, {}) if section else chosen
            place[field.path if is_expert(field.path) else name] = there[name]
    return chosen | ({EXPERT: expert} if expert else {})


def _readable(value: Any, name: str, base: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(f.name, getattr(value, f.name), getattr(base, f.name, None)) for f in fields(value) if f.init]
        return {key: _readable(v, key, b) for key, v, b in pairs if base is None or v != b}
    if isinstance(value, tuple | list):
        return [_readable(item, name, None) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _readable(item, name, None) for key, item in value.items()}
    if isinstance(value, float) and is_duration(name):
        text = duration_text(value)
        return text if text[-1].isalpha() else value
    return plain(value)


def policy_diff(one: Policy, two: Policy) -> list[tuple[str, str, str]]:
    """(field path, its value in `one`, in `two`) of each differing field, in the order of the tree."""
    found = []
    for field in policy_fields():
        steps = field.path.split(".")
        left, right = (functools.reduce(getattr, steps, policy) for policy in (one, two))
        if left != right:
            found.append((field.path, value_text(left, steps[-1]), value_text(right, steps[-1])))
    return found


def policy_values(policy: Policy) -> dict[str, str]:
    """Field path -> value of every field, as a policy file may write it."""
    values = {}
    for field in policy_fields():
        steps = field.path.split(".")
        values[field.path] = value_text(functools.reduce(getattr, steps, policy), steps[-1])
    return values


def policy_digest(policy: Policy) -> str:
    """A digest of the policy in 16 hexadecimal digits, for the references of a journal."""
    from autopilot.records.journal.decisions import digest, policy_bytes

    return digest(policy_bytes(policy)).hex()


# --- sources --------------------------------------------------------------------------------------


class StaticPolicySource:
    """One constant policy (port `PolicySource`)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = self._newest = policy

    def installed(self, edition: int) -> None:
        """The installation began with this edition of the shipped policies."""
        self._policy = as_of(self._newest, edition)

    def newest(self) -> Policy:
        """The same in a fresh installation."""
        return self._newest

    def current(self) -> Policy:
        """The policy given at construction."""
        return self._policy


class FilePolicySource:
    """A policy file, editable at run time (port `PolicySource`).

    `under`: as for `load_policy`. The constructor raises `InputError` if the file is invalid. Later an invalid file
    changes nothing: the last valid policy stays in force and `problem` gives the reason, until the file is valid again.
    """

    def __init__(self, path: str | Path, under: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.problem: str | None = None
        self._under, self._edition = under, LATEST_EDITION
        self._seen: bytes | None = _read(self.path)
        self._policy = self._made(self._seen, self._edition)

    def installed(self, edition: int) -> None:
        """The installation began with this edition of the shipped policies."""
        if edition != self._edition:
            self._edition, self._seen = edition, None  # the next look reads the file again

    def newest(self) -> Policy:
        """The same in a fresh installation."""
        return self._policy if self._seen is None or self.problem else self._made(self._seen, LATEST_EDITION)

    def _made(self, content: bytes, edition: int) -> Policy:
        return _policy_of(content, str(self.path), self.path.stem, None, self._under, edition)

    def current(self) -> Policy:
        """The policy in force; the same object while the content of the file is unchanged."""
        try:
            content = _read(self.path)
        except InputError as error:
            self.problem, self._seen = str(error), None
            return self._policy
        # Compares content, not modification time: two edits may share one, and the file is small.
        if content != self._seen:
            self._seen = content
            self._take(content)
        return self._policy

    def _take(self, content: bytes) -> None:
        try:
            policy = self._made(content, self._edition)
        except InputError as error:
            self.problem = str(error)
            return
        self.problem = None
        if policy != self._policy:
            self._policy = policy

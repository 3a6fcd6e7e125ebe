"""The admission policies that limit our accounts: installed, bound, those of this version, and obeyed by the server?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autopilot.readiness.access import user_of
from autopilot.readiness.fence import ACCEPTED, EPOCH_GROUP, EPOCH_VERSION, EPOCHS, FORBIDDEN, REGISTRATION, probe
from autopilot.readiness.line import Asked, Line, Shipped, Status, items, name_of

CHECK = "admission"
PROBE = "gpu-autopilot-fields-probe"
"""A ConfigMap refused by the policy of the fields; it is tried in a dry run."""
ACCOUNT = "gpu-autopilot"
"""The account meant by a question of somebody else."""
_PROTECTED = re.compile(r"'([a-z0-9, -]*)'\.split\(','\)")


def admission(asked: Asked) -> Iterator[Line]:
    """One line for each policy; none without enabled effects, for then nothing is to be limited."""
    if asked.policies is None:
        return
    user, _ = user_of(asked)
    account = user.removeprefix(f"system:serviceaccount:{asked.namespace}:")
    ours = account != user
    if not ours:
        text = f"{user or 'this user'} is not the account of the service: no admission policy limits what it writes"
        fix = "give the service the token of its account (docs/install.md), and check with that"
        yield Line(CHECK, "account", Status.WARNING, text, fix)
    root = f"/apis/{REGISTRATION}/v1"
    found = asked.cluster.get(f"{root}/validatingadmissionpolicies")
    bound = asked.cluster.get(f"{root}/validatingadmissionpolicybindings")
    there = {name_of(each): each for each in items(found)}
    for shipped in asked.policies(account if ours else ACCOUNT):
        if found.status == 404:
            text, fix = f"the cluster has no admission policies: {shipped.without}", "they need Kubernetes 1.30"
            yield Line(CHECK, shipped.name, Status.WARNING, text, fix)
        elif found.status != 200 or bound.status != 200:
            text = f"cannot be read: {(found if found.status != 200 else bound).reason}"
            yield Line(CHECK, shipped.name, Status.UNKNOWN, text, "apply deploy/observe.yaml of this version")
        elif text := _wrong(shipped, there.get(shipped.name), items(bound)):
            yield Line(CHECK, shipped.name, Status.WARNING, f"{text}: {shipped.without}", shipped.fix)
        else:
            yield _obeyed(asked, shipped, json.dumps(there[shipped.name]), user if ours else "")


def _wrong(shipped: Shipped, policy: Mapping[str, Any] | None, bindings: Sequence[Mapping[str, Any]]) -> str:
    """Missing parts, and differences from this version; "" for none."""
    if policy is None:
        return "is not there"
    wanted, spec = shipped.policy["spec"], policy.get("spec") or {}
    if others := sorted(part for part in wanted if not _holds(wanted[part], spec.get(part))):
        return f"is not that of this version ({', '.join(others)})"
    specs = [each.get("spec") or {} for each in bindings]
    if not any(_holds(shipped.binding["spec"], each) for each in specs):
        return "is there, and no binding lets it refuse every such write"
    return ""


def _holds(wanted: Any, found: Any) -> bool:
    """True if a part says as wanted, and selects nothing beyond: the server's defaults are texts and empty selectors.

    The protected namespaces are for the operator.
    """
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        narrower = any(isinstance(found[key], Mapping) and found[key] for key in found.keys() - wanted)
        return not narrower and all(_holds(each, found.get(key)) for key, each in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(found, list) and len(wanted) == len(found)
        return same and all(_holds(one, other) for one, other in zip(wanted, found, strict=True))
    if isinstance(wanted, str) and isinstance(found, str):
        return _PROTECTED.sub("", wanted) == _PROTECTED.sub("", found)
    return bool(wanted == found)


def _obeyed(asked: Asked, shipped: Shipped, text: str, user: str) -> Line:
    """The server's refusal of forbidden writes, by dry runs of the account itself (`user`; "": not asked)."""
    if shipped.lease:
        return _fence(asked, shipped, user)
    protected = _PROTECTED.search(text)
    said = f"nothing is written in {protected[1].replace(',', ', ')}" if protected else ""
    if user and f"'{user}'" in text:
        path = f"/api/v1/namespaces/{asked.namespace}/configmaps"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROBE, "namespace": asked.namespace}}
        answer = asked.cluster.post(path, body, {"dryRun": "All"})
        if answer.status in ACCEPTED:
            wrong = f"a dry run of a write that it forbids was accepted: {shipped.without}"
            return Line(CHECK, shipped.name, Status.WARNING, wrong, f"{shipped.fix}, and restart the API servers")
        if answer.status == FORBIDDEN and f"'{shipped.name}'" in answer.reason:
            return Line(CHECK, shipped.name, Status.OK, f"in force; {said}")
    return Line(CHECK, shipped.name, Status.OK, f"installed and bound; {said}")


def _fence(asked: Asked, shipped: Shipped, user: str) -> Line:
    path = f"/apis/{EPOCH_GROUP}/{EPOCH_VERSION}/namespaces/{asked.namespace}/{EPOCHS}/{shipped.lease}"
    answer = asked.cluster.get(path)
    epoch = (answer.document.get("spec") or {}).get("epoch")
    if not user or not isinstance(epoch, int):
        shown = "no leader has written its epoch yet" if answer.status == 404 else answer.reason
        text = f"installed and bound; {shown if user else 'not tried'}"
        return Line(CHECK, shipped.name, Status.OK, text)
    problem, refused = probe(asked.cluster, asked.namespace, epoch)
    if not problem:
        return Line(CHECK, shipped.name, Status.OK, f"in force; the present epoch is {epoch}")
    text, _, fix = problem.partition("; ")
    return Line(CHECK, shipped.name, Status.FAILED if refused else Status.WARNING, text, fix or shipped.fix)

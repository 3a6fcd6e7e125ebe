"""Limits of a leader to `recommend`: the mark of the watchdog, and a fence unchecked by the API server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from actuators.kubernetes.levers import LEVERS
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import PolicySource
from autopilot.kube.cluster_api import TICK_S, ClusterApi
from autopilot.service.capping import kinds_of
from autopilot.service.settings import Kubernetes
from autopilot.service.watchdog.marker import Marker

log: Any = structlog.get_logger("policy")

WITHOUT_VERSION = frozenset(
    kind for lever in LEVERS if any("create" in rule.verbs for rule in lever.rules) for kind in lever.kinds
)
"""Kinds of instructions with a write without a resourceVersion: an Eviction, or a created object."""
REARM = (
    "every mode counts as recommend until an admin puts the check `gpu-autopilot` back into the queues that had it, "
    "and runs `autopilot rearm`"
)
UNKNOWN = "whether the API server checks the fence is not known yet"
EVERY_S = 10.0
"""Time between two looks at the mark."""
PROBE_S, AGAIN_S = 60.0, 5.0
"""Time between two questions about the check of the fence; after a no."""


class RestrainedPolicy:
    """A policy with modes only as far as is safe now (port `PolicySource`)."""

    def __init__(
        self,
        source: PolicySource,
        marked: Callable[[], tuple[str, str]],
        unfenced: Callable[[], tuple[str, bool]],
        names: frozenset[str],
        rearm: Callable[[], str] = lambda: "",
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`marked`: the watchdog's action, and the reason for an unknown one.

        `unfenced`: the problem of the fence, and True if it refuses this leader's own writes.

        `names`: actions with writes without a resourceVersion. `rearm` takes the mark away, and returns the reason for
        a failure.
        """
        self._source, self._marked, self._names = source, marked, names
        self._rearm, self._monotonic_s = rearm, monotonic_s
        self.leads: Callable[[], bool] = lambda: False  # a controller without leadership asks nothing
        self._mark, self._mark_s = "the mark of the watchdog was not read yet", float("-inf")
        self._read = False  # the mark was read in this term
        self.unfenced = unfenced
        self._fence, self._fence_s = UNKNOWN, float("-inf")
        self._refused = False  # the API server refuses this leader's writes
        self._last: tuple[Policy, bool, bool, Policy] | None = None

    @property
    def problem(self) -> str | None:
        """Reason for a policy that is not in force as written; None for none."""
        said = [getattr(self._source, "problem", None) or "", self._mark]
        if self._fence and not self._mark and self._last is not None and self._last[3] is not self._last[0]:
            what = f"`auto` counts as recommend for {', '.join(sorted(self._names))}"
            said.append(f"{self._fence}; {'every mode counts as recommend' if self._refused else what}")
        return "; ".join(each for each in said if each) or None

    def rearm(self) -> str:
        """Take the mark away on a person's request; returns the reason for a failure, "" for a success.

        Any thread may call it.
        """
        problem = self._rearm()
        self._mark_s = float("-inf")
        return problem

    def current(self) -> Policy:
        """The policy in force; the same object while nothing changed."""
        policy, now_s = self._source.current(), self._monotonic_s()
        if self.leads():
            if now_s - self._mark_s >= EVERY_S:
                self._mark, self._mark_s = self._read_mark(), now_s
            every_s = AGAIN_S if self._fence else PROBE_S
            if now_s - self._fence_s >= every_s and self._acts(policy):
                (self._fence, self._refused), self._fence_s = self.unfenced(), now_s
        else:
            self._read = False
        key = (policy, bool(self._mark) or self._refused, bool(self._fence))
        if self._last is None or self._last[0] is not policy or self._last[1:3] != key[1:]:
            self._last = (*key, self._restrained(policy))
        return self._last[3]

    def _read_mark(self) -> str:
        mark, unknown = self._marked()
        if unknown and self._read:
            return self._mark  # a watchdog does nothing while this controller leads
        said = f"{REARM}: {mark}" if mark else ""
        if unknown:
            said = f"every mode counts as recommend: the mark of the watchdog cannot be read: {unknown}"
        self._read = not unknown
        if said and said != self._mark:
            log.warning("the policy is restrained", reason=said, fix="autopilot rearm")
        return said

    def _acts(self, policy: Policy) -> bool:
        return any(
            getattr(policy.modes, name) in {Mode.APPROVE, Mode.AUTO} for name in policy.modes.__dataclass_fields__
        )

    def _restrained(self, policy: Policy) -> Policy:
        lower: dict[str, Mode] = {}
        for name in policy.modes.__dataclass_fields__:
            mode = getattr(policy.modes, name)
            if ((self._mark or self._refused) and mode in {Mode.APPROVE, Mode.AUTO}) or (
                self._fence and mode == Mode.AUTO and name in self._names
            ):
                lower[name] = Mode.RECOMMEND
        return replace(policy, modes=replace(policy.modes, **lower)) if lower else policy


def unversioned() -> frozenset[str]:
    """Actions with writes without a resourceVersion: only the fence refuses those of an earlier leader."""
    return frozenset(name for name in Modes.__dataclass_fields__ if WITHOUT_VERSION & kinds_of(name))


def leader_lines(given: Kubernetes) -> list[str]:
    """The way to the leader, and the actions that depend on the fence, for `autopilot run --check`."""
    if given.lease is None:
        return [
            "leader       a lock file in the state folder, for one machine; several controllers need kubernetes.lease"
        ]
    lines = [f"leader       elected by Lease {given.namespace}/{given.lease.name}"]
    if given.act:
        names = ", ".join(sorted(unversioned()))
        files = "deploy/crds/epochs.yaml and deploy/fence.yaml"
        lines.append(f"fence        without {files}, `auto` counts as recommend for: {names}")
    return lines


def restrained(given: Kubernetes | None, api: ClusterApi | None, source: PolicySource) -> PolicySource:
    """The policy with its restraints, beside a cluster whose controllers elect their leader."""
    if given is None or given.lease is None or api is None:
        return source
    marker = Marker(api.within(TICK_S), given.namespace)
    return RestrainedPolicy(source, marker.read, lambda: (UNKNOWN, False), unversioned(), marker.clear)

"""Print the deeds of an uninstallation, or do them: stage by stage, one line for each object."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from autopilot.core.model.errors import InputError
from autopilot.kube.cluster_api import ClusterApi
from autopilot.operate.uninstall import installed
from autopilot.operate.uninstall.deed import DONE, STAYS, Cluster, Deed
from autopilot.operate.uninstall.effects import effects
from autopilot.readiness.manifest import NAME
from autopilot.readiness.watchdog import WATCHDOG
from autopilot.service.leading.lease import LeaseName, Terms, read_lease

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GONE_S, EVERY_S = 120.0, 1.0
"""Longest time until a deleted object is gone, and the time between two looks."""
PASSES = 3
"""Tries of a stage against objects written meanwhile."""
NOT_FOUND, CONFLICT = 404, 409
Stage = Callable[[Cluster, str], Iterator[Deed]]
BEFORE: tuple[Stage, ...] = (installed.processes,)
AFTER: tuple[Stage, ...] = (
    lambda cluster, _: effects(cluster),
    installed.rights,
    installed.limits,
    installed.definitions,
    installed.parts,
    installed.space,
    installed.fence,
)
WAITED = {"CustomResourceDefinition": installed.CRDS, "Namespace": f"{installed.CORE}/namespaces"}
"""Kinds of the cluster with slow removals: another installation could not begin."""


@dataclass
class Uninstall:
    """One run of the command."""

    api: ClusterApi
    namespace: str
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = time.monotonic
    failed: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cluster = Cluster(self.api)

    def may(self) -> None:
        """Raise `InputError` unless the account may do everything."""
        every = {"verb": "*", "group": "*", "resource": "*"}
        answer = self.api.post(REVIEWS, {"spec": {"resourceAttributes": every}})
        if answer.status != 201:
            raise InputError(f"the API server does not say what this account may do: {answer.reason}")
        if (answer.document.get("status") or {}).get("allowed") is not True:
            raise InputError(
                "this account is no administrator of the cluster; use a kubeconfig with the rights of cluster-admin"
            )

    def plan(self) -> int:
        """Print the present deeds; returns the number of objects."""
        deeds = [deed for stage in (*BEFORE, *AFTER) for deed in stage(self._cluster, self.namespace)]
        for deed in deeds:
            self.say(deed.line)
        return len(deeds)

    def run(self) -> int:
        """Do it; 0 if all objects to remove are gone, else 1. It may be repeated."""
        self._stage(BEFORE[0])
        self._ended()
        for stage in AFTER:
            if self.failed:
                break
            self._stage(stage)
        for line in [*self.stays, *(f"{STAYS:<10} {each}" for each in self._cluster.unread)]:
            self.say(line)
        if self.failed:
            self.say("not complete, and nothing further is removed: mend what failed, then repeat the command")
        return int(bool(self.failed))

    def _stage(self, stage: Stage) -> None:
        for number in range(PASSES):
            again, self.failed, stays, gone = False, [], [], []
            for deed in stage(self._cluster, self.namespace):
                if deed.do is None:
                    stays.append(deed.line)
                    continue
                answer = deed.do()
                if answer.status in DONE:
                    self.say(deed.line)
                    gone.append(deed.shown)
                elif answer.status == CONFLICT and number < PASSES - 1:
                    again = True
                else:
                    self.failed.append(deed.shown)
                    self.say(f"failed     {deed.line}: {answer.reason}")
            if not again:
                break
        self.stays += stays
        for shown in gone:
            kind, _, name = shown.partition(" ")
            if kind in WAITED:
                self._until(partial(self._gone, f"{WAITED[kind]}/{name}"), shown)

    def _ended(self) -> None:
        """Wait for the end of our pods; raise `InputError` if a controller leads from elsewhere."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"

        def over() -> bool:
            accounts = {NAME, WATCHDOG}
            found = self._cluster.objects(pods, "Pod")
            return not any((each.get("spec") or {}).get("serviceAccountName") in accounts for each in found)

        self._until(over, f"pods of the controller in {self.namespace}")
        name = LeaseName(self.namespace, NAME)
        before = self.api.get(name.path)
        if before.status != 200 or not read_lease(before.document)[0].holder:
            return
        self.sleep(2 * Terms().retry_s)
        now = self.api.get(name.path)
        seen = [read_lease(each.document)[0] for each in (before, now)]
        if now.status == 200 and seen[0] != seen[1]:
            raise InputError(f"{name}: {seen[1].holder} leads; stop `autopilot run` there, then repeat the command")

    def _gone(self, path: str) -> bool:
        return self.api.get(path).status == NOT_FOUND

    def _until(self, done: Callable[[], bool], what: str) -> None:
        end_s = self.monotonic_s() + GONE_S
        while not done():
            if self.monotonic_s() > end_s:
                self.failed.append(what)
                self.say(f"failed     {what}: still there after {GONE_S:g} s")
                return
            self.sleep(EVERY_S)

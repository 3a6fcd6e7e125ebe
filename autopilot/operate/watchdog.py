"""`autopilot watchdog`: build the watchdog and run it until a signal ends it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import parse_duration_s
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.service.leading.lease import LeaseName
from autopilot.service.logs import set_up_logs
from autopilot.service.settings import Log
from autopilot.service.watchdog.marker import Marker
from autopilot.service.watchdog.process import Watchdog
from autopilot.service.watchdog.watch import LeaseWatch

EVERY_S = 10.0
"""Time between two looks at the Lease."""


def run_watchdog(
    kubeconfig: Path | None, context: str | None, *, in_cluster: bool, namespace: str, lease: str, absence: str
) -> None:
    """Look every 10 s until SIGTERM or SIGINT. Raises `InputError` for an unusable option."""
    absence_s = parse_duration_s(absence, "--absence")
    if absence_s < 6 * EVERY_S:
        raise InputError(f"--absence: {absence} is not allowed; give at least {6 * EVERY_S:.0f}s")
    if in_cluster and (kubeconfig is not None or context is not None):
        raise InputError("--in-cluster: uses the service account of the pod; leave --kubeconfig and --context out")
    set_up_logs(Log())
    api = ClusterApi(Access(Address(kubeconfig, context, in_cluster)))
    watch = LeaseWatch(api, LeaseName(namespace, lease), EVERY_S)
    dog = Watchdog(api, watch, Marker(api, namespace), absence_s)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.is_set():
        dog.step()
        ended.wait(EVERY_S)

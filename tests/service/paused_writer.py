"""A leader as a process of its own that is stopped between its last check and its write."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import structlog

from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.service.leading.elector import Elector, ElectorThread
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.lease import LeaseName, Terms

EPOCH = "gpu-autopilot.io/epoch"


def say(*words: object) -> None:
    """A line for the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(kubeconfig: str) -> None:
    """Lead, check, stop; when continued, write. Prints the fence, then the answer to the write."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    api = ClusterApi(Access(Address(Path(kubeconfig))))
    terms = Terms(2.0, 1.0, 0.3)
    name = LeaseName("gpu-autopilot", "gpu-autopilot")
    elector = Elector(api, name, terms)
    thread = ElectorThread(elector, terms.retry_s)
    thread.start()
    while (fence := elector.fence()) is None:
        time.sleep(0.02)
    assert ClusterEpoch(api, name).claim(fence) == ""
    say(fence)
    assert elector.still(fence)
    os.kill(os.getpid(), signal.SIGSTOP)
    body = {"metadata": {"annotations": {EPOCH: str(fence), "by": "the paused one"}}}
    answer = api.patch("/api/v1/namespaces/team/pods/p", body)
    say(answer.status, answer.reason)
    say(elector.still(fence))
    thread.close()


if __name__ == "__main__":
    main(sys.argv[1])

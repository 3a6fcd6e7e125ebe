"""`python -m apiserver` serves a cluster to other processes until it is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from actuators.kubernetes.api import Api
from autopilot.kube.access import Access, Address
from tests.tidy.tree import ROOT

IN_THE_BACKGROUND = ("/bin/sh", "-c", 'trap "" INT; exec "$0" "$@"')
"""SIGINT is ignored, as in a command that a script or `nohup` starts with `&`."""


def test_another_process_reaches_it_by_its_kubeconfig(tmp_path: Path) -> None:
    """With Kueue, encrypted, and without nodes; SIGINT is no failure, and ends it in the background too."""
    kubeconfig = tmp_path / "kubeconfig"
    words = [sys.executable, "-m", "apiserver", "--kueue", "--no-kubelets", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen([*IN_THE_BACKGROUND, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "listens on https://" in process.stdout.readline()
            api = Api(Access(Address(kubeconfig)))
            assert api.get("/apis/kueue.x-k8s.io/v1beta2").ok
            assert api.get("/api/v1/nodes").body["items"] == []
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()  # `with` waits without a limit
    assert kubeconfig.stat().st_mode & 0o077 == 0

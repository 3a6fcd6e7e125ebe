"""`python -m apiserver` serves a cluster to other processes until it is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from actuators.kubernetes.api import Api
from collectors.kubernetes.access import Access, Address
from tests.tidy.tree import ROOT


def test_another_process_reaches_it_by_its_kubeconfig(tmp_path: Path) -> None:
    """With Kueue, encrypted, and without nodes; Ctrl-C is no failure."""
    kubeconfig = tmp_path / "kubeconfig"
    words = [sys.executable, "-m", "apiserver", "--kueue", "--no-kubelets", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "listens on https://" in process.stdout.readline()
            api = Api(Access(Address(kubeconfig)))
            assert api.get("/apis/kueue.x-k8s.io/v1beta2").ok
            assert api.get("/api/v1/nodes").body["items"] == []
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert kubeconfig.stat().st_mode & 0o077 == 0

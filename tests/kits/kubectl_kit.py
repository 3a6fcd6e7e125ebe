"""kubectl as a process, against one kubeconfig."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Kubectl:
    """`kubectl("get", "pods")` runs a command to its end. HOME is the folder of the kubeconfig, so is the cache."""

    def __init__(self, binary: str, kubeconfig: Path) -> None:
        self._binary = binary
        home = str(kubeconfig.parent)
        self._environment = {"KUBECONFIG": str(kubeconfig), "HOME": home, "PATH": os.environ.get("PATH", os.defpath)}

    def __call__(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Exit status and output of a command."""
        return subprocess.run(
            [self._binary, *arguments],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def done(self, *arguments: str, stdin: str | None = None) -> str:
        """What a command printed that must succeed."""
        result = self(*arguments, stdin=stdin)
        assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """What a command said on stderr that must fail."""
        result = self(*arguments, stdin=stdin)
        assert result.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {result.stdout}"
        return result.stderr

    @contextmanager
    def lines(self, *arguments: str) -> Iterator[Iterator[str]]:
        """The lines of a command that does not end by itself, as it prints them."""
        command = [self._binary, *arguments]
        with subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield iter(process.stdout.readline, "")
            finally:
                process.terminate()

"""The driver of a machine for the NVML collector: a stand-in for its library, built by gcc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.nvml_kit import DRIVER, ROOT, STUB, Watch


@pytest.fixture(scope="session")
def library(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the stub under the driver's name."""
    folder = tmp_path_factory.mktemp("nvml")
    built = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [
            require_tool("gcc"),
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            built,
            STUB,
            "-lm",
            "-Wl,-soname,libnvidia-ml.so.1",
        ],
        check=True,
    )
    return folder


@pytest.fixture
def watch(library: Path, tmp_path: Path) -> Watch:
    """`watch(state, state, ...)`: what the collector answers, 15 s apart, while the machine changes."""

    def run(*states: str) -> list[dict[str, Any]]:
        file = tmp_path / "state"
        steps = [{"now_s": 15.0 * place, "state": state} for place, state in enumerate(states)]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB_STATE": str(file)}
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(file), json.dumps(steps)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return run

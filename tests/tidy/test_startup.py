"""The command line answers at once: heavy libraries are imported where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT

HEAVY = (
    "numpy",
    "pandas",
    "sklearn",
    "scipy",
    "pyarrow",
    "matplotlib",
    "plotly",
    "statsmodels",
    "kubernetes",
)
SCRIPT = f"""
import sys
from autopilot.cli import main
sys.argv = ["autopilot", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    status = end.code or 0
else:
    status = 0
loaded = sorted(set({HEAVY!r}) & set(sys.modules))
print("status", status, "loaded", *loaded, file=sys.stderr)
"""


@pytest.mark.skipif(not (ROOT / "autopilot" / "cli.py").exists(), reason="needs autopilot/cli.py")
@pytest.mark.parametrize("arguments", [["--help"], ["version"]], ids=" ".join)
def test_help_and_version_load_no_heavy_library(arguments: list[str]) -> None:
    """`autopilot --help` and `autopilot version` end well and import no numpy, pandas or scikit-learn."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == "status 0 loaded", f"import it inside the function that uses it: {done.stderr[-500:]}"

"""What every test may ask for: the real data, tools of the machine, seeds, and the hypothesis profile.

Environment:
    AUTOPILOT_SHARED_DATA     folder of real traces; default `../shared/data` beside the checkout
    AUTOPILOT_SOAK_SEED       the value of `soak_seed`, set by `make soak`; default 0
    AUTOPILOT_TOOLS_REQUIRED  set in CI: a missing tool fails the test instead of skipping it
    HYPOTHESIS_PROFILE        `quick` (default) or `soak`
"""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

for _pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")  # before numpy is loaded: threads that wait for each other only cost time

gc.disable()  # what is imported and collected is kept; `pytest_collection_finish` enables it

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, Phase, settings  # noqa: E402

from tests.kits.tools import MissingToolError, find_tool  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile(
    "quick", derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=200,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# --- data ---------------------------------------------------------------------------------------


def find_shared_data() -> Path | None:
    """The folder of real traces, or None where this machine has none."""
    folder = Path(os.environ.get("AUTOPILOT_SHARED_DATA", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path | None:
    """The folder of real traces, or None; then the test runs on small synthetic data and says so (`ran_on`)."""
    return find_shared_data()


@pytest.fixture
def ran_on(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Note which data a test ran on, e.g. `ran_on("philly_jobs")`, `ran_on("synthetic")`; printed at the end."""

    def note(data: str) -> None:
        request.node.user_properties.append(("ran on", data))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Close with the data that the tests ran on, so that a pass without real traces is seen as such."""
    folder = find_shared_data()
    where = "present" if folder else "absent (../shared/data): tests that can use them ran on synthetic data"
    terminalreporter.write_line(f"real traces: {where}")
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    used = Counter(value for r in reports for name, value in r.user_properties if name == "ran on")
    for data, tests in sorted(used.items()):
        terminalreporter.write_line(f"  {tests} test(s) ran on {data}")
    _print_durations(terminalreporter)


SLOWEST = 10
"""Tests that are named with their time at the end of a run."""


def _print_durations(terminalreporter: pytest.TerminalReporter) -> None:
    """Time by folder, and the slowest tests: set-up, call and teardown, in seconds of one worker."""
    by_test: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                by_test[report.nodeid] += report.duration
    if len(by_test) <= SLOWEST:
        return
    by_folder: defaultdict[str, float] = defaultdict(float)
    for test, duration_s in by_test.items():
        by_folder["/".join(test.split("::")[0].split("/")[:2])] += duration_s
    terminalreporter.write_line("time by folder, seconds of one worker:")
    for folder, duration_s in _longest_first(by_folder):
        terminalreporter.write_line(f"  {duration_s:8.1f}  {folder}")
    terminalreporter.write_line(f"slowest {SLOWEST} tests:")
    for test, duration_s in _longest_first(by_test)[:SLOWEST]:
        terminalreporter.write_line(f"  {duration_s:8.1f}  {test}")


def _longest_first(durations_s: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(durations_s.items(), key=lambda item: -item[1])


# --- tools --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """`require_tool("prometheus")` returns the tool's path, or skips the test naming what is missing. What
    `make test-services` unpacked (kubectl, helm) comes before PATH.
    """

    def require(name: str) -> str:
        try:
            return find_tool(name)
        except MissingToolError as error:
            if os.environ.get("AUTOPILOT_TOOLS_REQUIRED"):
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))

    return require


# --- long tests and order -----------------------------------------------------------------------

BRIEF = ("tests/conformance", "tests/contracts", "tests/golden", "tests/tidy", "tests/unit")
LONG = (
    "tests/contracts/test_runtime_models",
    "tests/contracts/test_worked_",
    "tests/golden/test_golden_scores",
    "tests/unit/actuators/test_admission_check",
    "tests/unit/actuators/test_job_width",
    "tests/unit/actuators/test_mig_config",
    "tests/unit/actuators/test_sharing_config",
    "tests/unit/actuators/test_rights_used",
    "tests/unit/actuators/test_second_retry",
    "tests/unit/actuators/test_unread_pods",
    "tests/unit/alerts/test_rules.py::test_an_alert_fires",
    "tests/unit/app/test_advised",
    "tests/unit/app/test_backtest_bursts.py::test_the_gate_is_given",
    "tests/unit/app/test_backtest_bursts.py::test_peaks",
    "tests/unit/app/test_commands.py::test_a_job_file_has_no_activity",
    "tests/unit/app/test_commands.py::test_among_several_tenants",
    "tests/unit/app/test_commands.py::test_dates_of_a_job_file",
    "tests/unit/app/test_commands.py::test_each_policy_has_a_journal",
    "tests/unit/app/test_commands.py::test_explain_answers_for_a_time",
    "tests/unit/app/test_commands.py::test_replay_takes_its_journal",
    "tests/unit/app/test_commands.py::test_simulate_ends_with",
    "tests/unit/app/test_commands.py::test_the_comparison_says",
    "tests/unit/app/test_commands.py::test_the_state_folder_is_made",
    "tests/unit/app/test_compare.py::test_the_worker_of_a_dask_cluster",
    "tests/unit/app/test_compare.py::test_an_interrupted",
    "tests/unit/app/test_compare.py::test_the_command_prints",
    "tests/unit/app/test_forecast_command",
    "tests/unit/app/test_model_commands",
    "tests/unit/app/test_own_data.py::test_a_bomb",
    "tests/unit/app/test_own_data.py::test_an_open_quote",
    "tests/unit/app/test_policy_gate",
    "tests/unit/app/test_runtime_gate",
    "tests/unit/app/test_runtime_promotion",
    "tests/unit/app/test_stays",
    "tests/unit/collectors/test_nvml",
    "tests/unit/core/intake/test_clock",
    "tests/unit/core/effects/test_pipelined_restart",
    "tests/unit/http/test_oidc",
    "tests/unit/http/test_schema",
    "tests/unit/http/test_sessions",
    "tests/unit/http/test_views",
    "tests/unit/metering/test_metered_runs",
    "tests/unit/models/test_bursts",
    "tests/unit/models/test_fit_parts",
    "tests/unit/models/test_proving",
    "tests/unit/models/test_quantile_fit",
    "tests/unit/models/test_runtime_parts",
    "tests/unit/models/test_runtime_proving",
    "tests/unit/playground/",
    "tests/unit/readiness/test_rights_of_roles",
    "tests/unit/registry/test_registry_disk",
    "tests/unit/records/test_replay",
    "tests/unit/report/test_report",
    "tests/unit/service/test_metered_service",
    "tests/unit/service/test_sent_notices",
    "tests/unit/service/watchdog/test_watchdog",
    "tests/unit/shell/test_settings.py::test_a_difference",
    "tests/unit/shell/test_settings.py::test_a_policy_survives",
    "tests/unit/shell/test_worker",
    "tests/unit/simulator/test_arrivals",
)
"""Beginnings of the names of tests. Tests under `BRIEF` are short, but for those under `LONG`: their files take more
than 1.5 CPU s, and more than 0.1 CPU s a test. Where few tests of a file take most of its time, they are named.
"""


PARSED = "tests/tidy/"
"""Tests that share the syntax trees of all files: one process has them all."""


def is_long(test: str) -> bool:
    """Whether `make fast` leaves a test out."""
    return not test.startswith(BRIEF) or test.startswith(LONG)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests get their mark. Each process begins with its share of them: short ones remain for the end, when
    processes take tests from each other, so that none is left alone with a long one. The tests of a file stay together,
    and those of `PARSED`.
    """
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    files: dict[str, list[pytest.Item]] = {}
    slow: set[str] = set()
    for item in sorted(items, key=lambda item: item.nodeid.split("::")[0]):
        file = item.nodeid.split("::")[0] if not item.nodeid.startswith(PARSED) else PARSED
        files.setdefault(file, []).append(item)
        if is_long(item.nodeid):
            item.add_marker("long")
            slow.add(file)
    brief, long = ([file for file in files if (file in slow) == each] for each in (False, True))
    dealt = [file for share in range(processes) for kind in (long, brief) for file in kind[share::processes]]
    items[:] = [item for file in dealt for item in files[file]]


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not go through it each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


# --- seeds --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def soak_seed() -> int:
    """0, or the seed of this case in `make soak`: a test that asks for it names their number in a mark `seeds`."""
    return int(os.environ.get("AUTOPILOT_SOAK_SEED", "0"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of random numbers seeded by the test's name: the same draws in every run and order."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """Ctrl-C is heeded, here and in processes that are started, even where the whole run was started in the
    background.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

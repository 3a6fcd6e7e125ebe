"""Scheduling policies of other people: registered, run, refused, kept apart by their code."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autopilot import api
from autopilot.app.compare import running
from autopilot.app.options import SimulateOptions
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from simulator.plugins import registry
from simulator.plugins.code import code_digest
from simulator.plugins.watch import Overtime, at_most

HEADER = "job_id,tenant,submit_s,duration_s,gpus\n"
ROWS = "".join(f"j{n},t,{60 * n},{900 - 50 * n},{(4, 8)[n % 2]}\n" for n in range(6))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a job file, a state folder and no registered policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "jobs.csv").write_text(HEADER + ROWS)
    yield tmp_path
    registry._registered.clear()


@pytest.fixture
def jobs() -> api.Input:
    """Six jobs on one node."""
    return api.load("jobs.csv", cluster="1x8", telemetry="off")


class Shortest:
    """The shortest job first, whatever waits."""

    def decide(self, view: api.View) -> None:
        for job in sorted(view.waiting, key=lambda job: job.duration_s):
            view.start(job)


class Asks:
    """Calls a function with the view."""

    decide_limit_s = 0.2

    def __init__(self, ask: Callable[[api.View], Any] = lambda view: None) -> None:
        self.ask = ask

    def decide(self, view: api.View) -> float | None:
        for job in view.waiting:
            view.start(job)
        answer: float | None = self.ask(view)
        return answer


def test_a_policy_of_ones_own_does_as_the_baseline_of_that_order(jobs: api.Input) -> None:
    """Shortest first with skip-ahead, written outside, equals `sjf-skip` job by job; no start is refused."""
    api.register("shortest", Shortest)
    own, known = (api.simulate(jobs, policy=name) for name in ("shortest", "sjf-skip"))
    columns = ["job_id", "start_s", "end_s", "total_wait_s", "gpus", "nodes"]
    assert own.jobs[columns].equals(known.jobs[columns])
    assert own.result["refused"] == {"by_reason": {}, "first": []}
    assert own.result["invariants"]["violated"] == 0
    assert isinstance(Shortest(), api.Policy)


def again(view: api.View) -> None:
    """Starts the first running job a second time, then on GPUs of others, and evicts what waits."""
    if view.running and view.waiting:
        view.start(view.running[0].job)
        view.start(view.waiting[0], range(view.waiting[0].gpus))
        view.evict(view.waiting[0])


def test_illegal_requests_are_refused_with_row_and_reason(
    jobs: api.Input, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second start, a start on held GPUs and an eviction of waiting work change nothing; the run says so."""
    api.register("again", partial(Asks, again))
    run = api.simulate(jobs, policy="again")
    assert set(run.result["refused"]["by_reason"]) == {
        "the work is not pending",
        "a GPU or instance is held by other work",
        "the work holds no GPU",
    }
    assert run.result["refused"]["first"][0] | {"at_s": 0} == {
        "at_s": 0,
        "request": "start",
        "job_id": "j0",
        "row": 0,
        "reason": "the work is not pending",
    }
    assert run.jobs["start_s"].equals(api.simulate(jobs, policy="fifo-skip").jobs["start_s"])
    with pytest.raises(SystemExit):
        main(["simulate", "--jobs", "jobs.csv", "--cluster", "1x8", "--telemetry", "off", "--policy", "again"])
    assert "requests were refused; the first: start of job j0 (row 0) at 60 s: the work is not pending" in (
        capsys.readouterr().out
    )


def change(view: api.View) -> None:
    """Changes what it was shown."""
    view.nodes[0].free = ()  # type: ignore[misc]


def misname(view: api.View) -> None:
    """Changes a figure of the view at a node, which has none of that name."""
    view.nodes[0].free_gpus = 8  # type: ignore[attr-defined]


def spin(view: api.View) -> None:
    """Ends neither by itself nor by an error."""
    while True:
        with suppress(Exception):
            time.sleep(60)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda view: 1 / 0, r"decide at 0 s, with 0 jobs waiting: raised ZeroDivisionError.*test_plugins.py, line"),
        (lambda view: sys.exit(3), "raised SystemExit"),
        (change, "raised FrozenInstanceError"),
        (misname, "raised FrozenInstanceError: cannot assign to field 'free_gpus'"),
        (spin, r"took more than 0.2 s of real time \(.*test_plugins.py, line .*decide_limit_s"),
        (lambda view: view.start("j1"), "raised TypeError: a Job of view.waiting"),
        (lambda view: view.now_s, "returned 0, which is not after view.now_s"),
        (lambda view: float("nan"), "returned nan; return None, or the virtual time"),
        (lambda view: "soon", "returned 'soon'"),
    ],
)
def test_what_a_policy_does_wrong_is_one_message(jobs: api.Input, ask: Any, words: str) -> None:
    """It names the policy, the virtual time, the error and the line; the run ends."""
    api.register("wrong", partial(Asks, ask))
    with pytest.raises(InputError, match=f"policy wrong: .*{words}"):
        api.simulate(jobs, policy="wrong")


def test_a_policy_that_wakes_all_the_time_or_starts_nothing_ends(jobs: api.Input) -> None:
    """Wake-ups come a second apart at least, and a run without an event that could start work ends."""
    calls: list[float] = []

    class Idle:
        def decide(self, view: api.View) -> float:
            calls.append(view.now_s)
            return view.now_s + (1e-9 if len(calls) < 50 else 86_400.0)

    api.register("idle", Idle)
    run = api.simulate(jobs, policy="idle")
    assert run.result["jobs"]["finished"] == 0
    assert "6 jobs wait" in run.result["stuck"]
    assert min(b - a for a, b in pairwise(calls)) >= 1.0


def test_a_call_in_another_thread_is_ended_too() -> None:
    """Workers of Dask run in threads, where signals do not arrive."""
    ended: list[bool] = []

    def call() -> None:
        try:
            with at_most(0.05):
                while True:
                    pass
        except Overtime:
            ended.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert ended == [True]


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("fifo", Shortest, "is a baseline"),
        ("autopilot", Shortest, "is a shipped policy"),
        ("a/b", Shortest, "is no name for a policy"),
        ("mine.yaml", Shortest, "is no name for a policy"),
        ("mine", Shortest(), "give the class or a function that makes one"),
        ("mine", object, "has no method decide"),
        ("mine", lambda: 1 / 0, "making it raised ZeroDivisionError"),
        ("mine", lambda one: Shortest(), "it is called without arguments"),
    ],
)
def test_what_cannot_be_registered_is_refused(name: str, make: Any, words: str) -> None:
    """One message that names the fix; nothing is registered then."""
    with pytest.raises(InputError, match=words):
        api.register(name, make)
    assert not registry._registered


def test_installed_packages_bring_policies(
    jobs: api.Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry point names a policy for every command. One that cannot be imported gives a message when it is used."""
    (tmp_path / "theirs.py").write_text(textwrap.dedent(SOURCE.format(sign="")))
    (tmp_path / "their_key.py").write_text("def key(job):\n    return job.gpus\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = {name: EntryPoint(name, f"theirs:{name}", registry.GROUP) for name in ("Ordered", "Absent")}
    monkeypatch.setattr(registry, "_installed", lambda: points)
    with pytest.raises(SystemExit):
        main(["simulate", "--jobs", "jobs.csv", "--cluster", "1x8", "--telemetry", "off", "--policy", "fifo,Ordered"])
    assert "Ordered finished the same 6 jobs" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"policy Absent: theirs:Absent of the entry points .* cannot be imported"):
        api.simulate(jobs, policy="Absent")
    with pytest.raises(InputError, match="did you mean Ordered"):
        api.simulate(jobs, policy="Orderd")


SOURCE = """
    from autopilot import api
    import their_key

    SIGN = {sign}1

    class Base:
        def decide(self, view: api.View) -> None:
            for job in sorted(view.waiting, key=self.key):
                view.start(job)

    class Ordered(Base):
        def key(self, job):
            return SIGN * their_key.key(job)
"""


@pytest.fixture
def load_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Registers a policy of two modules in files, loaded anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(sign: str = "", key: str = "job.duration_s") -> None:
        (tmp_path / "theirs.py").write_text(textwrap.dedent(SOURCE.format(sign=sign)))
        (tmp_path / "their_key.py").write_text(f"def key(job):\n    return {key}\n")
        for name in ("theirs", "their_key"):
            sys.modules.pop(name, None)
        import theirs  # type: ignore[import-not-found]

        api.register("theirs", theirs.Ordered)

    yield load
    for name in ("theirs", "their_key"):
        sys.modules.pop(name, None)


def test_the_code_of_a_policy_is_part_of_what_is_kept(
    jobs: api.Input, load_theirs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a constant, of another module or of an argument runs anew; the same code again does not run."""
    ran: list[str] = []
    real = running.run_case

    def counted(options: SimulateOptions) -> running.Record:
        ran.append("")
        return real(options)

    monkeypatch.setattr(running, "run_case", counted)

    def waits() -> tuple[float, int]:
        ran.clear()
        found = api.compare(jobs, policies=["theirs"], seeds=[1], workers=1)
        return found.records[0]["result"]["jobs"]["total_wait_s_mean"], len(ran)

    load_theirs()
    shortest, _ = first = waits()
    assert first == (shortest, 1)
    assert waits() == (shortest, 0)
    for change in ({"sign": "-"}, {"key": "-job.duration_s"}):
        load_theirs(**change)
        longest, runs = waits()
        assert runs == 1
        assert longest > shortest
    load_theirs()
    assert waits() == (shortest, 0)


def test_the_digest_of_code_follows_what_it_reaches() -> None:
    """Attributes, arguments, closures and defaults count; the name and the place of the code do not."""

    def digest(make: Any) -> str:
        api.register("it", make)
        return code_digest("it")

    def close(number: int, *, members: frozenset[str] = frozenset({"a", "b", "c"})) -> Any:
        return lambda: Asks(lambda view: view.now_s + number if "a" in members else None)

    found = [
        digest(close(1)),
        digest(close(2)),
        digest(close(1, members=frozenset({"a"}))),
        digest(partial(Asks, again)),
        digest(partial(Asks, change)),
        digest(Shortest),
    ]
    assert len(set(found)) == len(found)
    assert digest(close(1)) == found[0]
    assert code_digest("fifo") == ""


@pytest.mark.parametrize("kind", ["file", "notebook"])
def test_workers_run_a_registered_policy(
    jobs: api.Input, load_theirs: Callable[..., None], kind: str, tmp_path: Path
) -> None:
    """Two processes give what one gives, for code in files that changed since and for code without a file."""
    if kind == "file":
        load_theirs(sign="-")
        (tmp_path / "theirs.py").write_text("raise SystemExit")  # what is loaded counts, not what the file says now
    else:
        cell: dict[str, Any] = {"api": api}
        exec("class Ordered:\n    def decide(self, view):\n        [view.start(j) for j in view.waiting[::-1]]", cell)
        api.register("theirs", cell["Ordered"])
    one, two = (
        api.compare(jobs, policies=["theirs"], seeds=2, workers=workers, results=tmp_path / str(workers))
        for workers in (1, 2)
    )
    assert [each["result"] for each in one.records] == [each["result"] for each in two.records]
    assert one.records[0]["result"]["jobs"]["finished"] == 6


def test_an_error_of_a_policy_in_a_worker_is_the_same_message(jobs: api.Input) -> None:
    """The message of the process that failed reaches the caller."""
    api.register("wrong", partial(Asks, lambda view: 1 / 0))
    with pytest.raises(InputError, match=r"policy wrong: decide at 0 s, .*ZeroDivisionError"):
        api.compare(jobs, policies=["wrong"], seeds=2, workers=2)

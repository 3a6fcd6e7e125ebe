"""Run what `make test` has no time for, within one limit of minutes: `make soak` does it.

    python scripts/soak.py [--minutes 60] [--workers 2] [--only PART ...] [--fresh]

A case is one test with one seed, in a process of its own: tests with the mark `soak` have one case, those with the mark
`seeds` one for each seed (fixture `soak_seed`), and each file of tests/properties has ROUNDS, with other examples each.
A part is a file of such tests, the folder of the properties, or all tests with few seeds. The next case is of the part
with the highest share left times violations a minute; in a part all tests take turns, and each has its seeds in random
order, so that a short run samples everything.

What each case found is kept in build/soak.json, under a digest of the Python source: the same command goes on where it
was stopped, and a changed source begins anew. What runs when the minutes are over is cut, and runs again next time. The
exit status is 1 where a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from io import StringIO
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "soak.json"
LEFT_OUT = ("build", "out", "shared")
"""Folders of the checkout that hold no source, beside hidden ones."""
PROPERTIES, ROUNDS = "tests/properties/", 50
FEW, REST = 10, "few seeds"
"""Tests with fewer seeds are a part together, REST."""
CLOSES_S = 15.0
"""How long a case that is cut may take to close what it opened."""
PASSED, FAILED, NOTHING = 0, 1, 5
"""Exit codes of pytest that are verdicts; NOTHING: it collected no test."""


@dataclass(frozen=True)
class Case:
    """One test, or file of tests, with one seed."""

    part: str
    test: str
    seed: int

    @property
    def command(self) -> list[str]:
        """What runs it."""
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--hypothesis-seed={self.seed}", self.test]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        return {"AUTOPILOT_SOAK_SEED": str(self.seed), "HYPOTHESIS_PROFILE": "soak"}

    def __str__(self) -> str:
        """The key of the record."""
        return f"{self.test} {self.seed}"


@dataclass(frozen=True)
class Found:
    """What a case found. `violation` is "" where there is none, `skipped` where a test had what it needs."""

    seconds: float
    violation: str = ""
    skipped: str = ""


@dataclass
class Book:
    """Which cases are left, which run, and what the others found."""

    cases: Mapping[str, Sequence[Case]]  # of each part, in the order in which they run
    found: dict[str, Found]
    running: dict[Case, float] = field(default_factory=dict)  # since when
    cut: list[str] = field(default_factory=list)

    def begin(self, now_s: float) -> Case | None:
        """The next case; None where nothing is left."""
        left = {part: [each for each in cases if self._is_left(each)] for part, cases in self.cases.items()}
        part = max(left, key=lambda part: len(left[part]) / len(self.cases[part]) * self._rate(part, now_s))
        if not left[part]:
            return None
        self.running[left[part][0]] = now_s
        return left[part][0]

    def end(self, case: Case, found: Found | None) -> None:
        """A case ended; None: it was cut."""
        del self.running[case]
        if found is None:
            self.cut.append(str(case))
        else:
            self.found[str(case)] = found

    def done(self, part: str) -> list[Found]:
        """What the cases of a part found."""
        return [self.found[str(each)] for each in self.cases[part] if str(each) in self.found]

    def _is_left(self, case: Case) -> bool:
        return str(case) not in self.found and case not in self.running

    def _rate(self, part: str, now_s: float) -> float:
        """Violations a minute, where one more is found in the next minute."""
        done = self.done(part)
        spent_s = sum(each.seconds for each in done)
        spent_s += sum(now_s - begun_s for case, begun_s in self.running.items() if case.part == part)
        return (1 + sum(bool(each.violation) for each in done)) / (1.0 + spent_s / 60.0)


# --- cases ----------------------------------------------------------------------------------------


class Collected:
    """A plugin of pytest that notes the tests, with the number of their seeds."""

    def __init__(self) -> None:
        self.seeds: dict[str, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All of them are known."""
        for item in session.items:
            marks = {each.name: each for each in item.iter_markers()}
            if item.nodeid.startswith(PROPERTIES):
                self.seeds[item.nodeid.partition("::")[0]] = ROUNDS
            elif "e2e" not in marks and ("seeds" in marks or "soak" in marks):
                self.seeds[item.nodeid] = marks["seeds"].args[0] if "seeds" in marks else 1


def collect() -> dict[str, list[Case]]:
    """The cases of every part, in the order in which they run."""
    files = [each for each in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.s" in each.read_text("utf-8")]
    plugin, said = Collected(), StringIO()
    with redirect_stdout(said):
        status = pytest.main(["-q", "--collect-only", *map(str, files), str(ROOT / PROPERTIES)], plugins=[plugin])
    if status != PASSED:
        raise RuntimeError(said.getvalue())
    parts: dict[str, dict[str, int]] = {}
    for test, seeds in plugin.seeds.items():
        name = Path(test.partition("::")[0])
        part = name.parent.name if test.startswith(PROPERTIES) else name.stem.removeprefix("test_")
        parts.setdefault(part if seeds >= FEW else REST, {})[test] = seeds
    return {part: spread(part, tests) for part, tests in parts.items()}


def spread(part: str, tests: Mapping[str, int]) -> list[Case]:
    """All seeds of all tests: the tests take turns, each has its seeds in random order."""
    rng, turns = random.Random(part), []
    for test, seeds in tests.items():
        turns.append([Case(part, test, seed) for seed in rng.sample(range(seeds), seeds)])
    rng.shuffle(turns)
    return [case for turn in zip_longest(*turns) for case in turn if case is not None]


def run(case: Case, left: Callable[[], float]) -> Found | None:
    """What a case finds; None where `left()`, the seconds that are left, ends before it."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report, said = Path(folder) / "report.xml", Path(folder) / "said"
        more = ["-q", "--tb=short", f"--basetemp={folder}/tmp", f"--junit-xml={report}"]
        environment = {**os.environ, **case.environment}
        with said.open("wb") as out:
            child = subprocess.Popen([*case.command, *more], cwd=ROOT, env=environment, stdout=out, stderr=out)
            while child.poll() is None:
                if left() <= 0.0:
                    child.send_signal(signal.SIGINT)  # pytest closes what its tests opened
                    try:
                        child.wait(CLOSES_S)
                    except subprocess.TimeoutExpired:
                        child.kill()
                        child.wait()
                    return None
                time.sleep(0.05)
        seconds = round(time.monotonic() - begun_s, 1)
        if child.returncode not in {PASSED, FAILED}:
            return Found(seconds, f"pytest ended with {child.returncode}: {said.read_text('utf-8')[-2000:]}")
        tests = ET.parse(report).getroot()
        bad = [each for kind in ("failure", "error") for each in tests.iter(kind)]
        violation = "\n".join((each.text or "")[-2000:] for each in bad)
        return Found(seconds, violation, "; ".join(sorted({each.get("message", "") for each in tests.iter("skipped")})))


# --- a soak ---------------------------------------------------------------------------------------


def soak(book: Book, workers: int, minutes: float, keep: Callable[[Book], None]) -> None:
    """Run cases in processes until the minutes are over or nothing is left; `keep` is called after each."""
    ends_s, lock = time.monotonic() + 60.0 * minutes, threading.Lock()
    stopped = threading.Event()

    def left() -> float:
        return 0.0 if stopped.is_set() else ends_s - time.monotonic()

    def work() -> None:
        while left() > 0.0:
            with lock:
                case = book.begin(time.monotonic())
            if case is None:
                return
            found = run(case, left)
            with lock:
                book.end(case, found)
                keep(book)
                if found is not None:
                    print(f"{'FAILED ' if found.violation else ''}{case}: {found.seconds} s", flush=True)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for each in threads:
        each.start()
    try:
        for each in threads:
            each.join()
    except KeyboardInterrupt:
        stopped.set()
        for each in threads:
            each.join()


def table(book: Book) -> str:
    """What ran of each part, what was skipped and cut, and every violation with the command that repeats it."""
    lines = [f"{'part':<20}{'done':>8}{'of all':>8}{'violations':>12}{'minutes':>9}"]
    for part, cases in sorted(book.cases.items()):
        done = book.done(part)
        bad, minutes = sum(bool(each.violation) for each in done), sum(each.seconds for each in done) / 60.0
        lines.append(f"{part:<20}{len(done):>8}{len(cases):>8}{bad:>12}{minutes:>9.1f}")
    every = {each: book.found[str(each)] for part in book.cases.values() for each in part if str(each) in book.found}
    skipped = Counter(each.skipped for each in every.values() if each.skipped)
    lines += [f"skipped {number} times: {reason}" for reason, number in skipped.items()]
    lines += [f"cut by the limit: {each}" for each in book.cut]
    for case, found in every.items():
        if found.violation:
            variables = " ".join(f"{name}={value}" for name, value in case.environment.items())
            lines += [f"FAILED {case}", found.violation, f"repeat it with: {variables} {shlex.join(case.command)}"]
    return "\n".join(lines)


def digest() -> str:
    """Of all Python source of the checkout."""
    made = blake2b(digest_size=8)
    for folder in sorted(ROOT.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in LEFT_OUT:
            for file in sorted(folder.rglob("*.py")):
                made.update(file.read_bytes())
    return made.hexdigest()


def main() -> int:
    """Soak, print the table; 1 where a case failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0, help="for everything (default 60)")
    options.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    options.add_argument("--only", nargs="+", metavar="PART", default=[], help="parts that the table names")
    options.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    asked = options.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where this was started in the background
    source = digest()
    with ProcessPoolExecutor(1, get_context("fork")) as pool:  # it imports what all tests import
        cases = pool.submit(collect).result()
    if unknown := set(asked.only) - cases.keys():
        options.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(sorted(cases))}")
    kept = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() and not asked.fresh else {}
    found = kept["found"] if kept.get("source") == source else {}
    book = Book(
        {part: each for part, each in cases.items() if not asked.only or part in asked.only},
        {case: Found(**each) for case, each in found.items()},
    )

    def keep(book: Book) -> None:
        RECORD.parent.mkdir(exist_ok=True)
        written = {case: asdict(each) for case, each in book.found.items()}
        RECORD.write_text(json.dumps({"source": source, "found": written}, indent=1), "utf-8")

    soak(book, asked.workers, asked.minutes, keep)
    print(table(book))
    return int(any(each.violation for part in book.cases for each in book.done(part)))


if __name__ == "__main__":
    sys.exit(main())

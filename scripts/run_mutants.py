"""Break the source on purpose, one place at a time, and see that the tests notice: `make mutants`.

    python scripts/run_mutants.py [--workers N] [--only NAME ...] [--fresh]

Each mutant in tests/mutants/*.toml replaces one text in one file and names the tests that must fail then. Mutants run
in copies of the checkout, in parallel. Verdicts are kept in build/mutants.json under a digest of the mutant, its file
and its test files, so that an interrupted run resumes and an unchanged mutant does not run again. The run fails if a
text is not found exactly once, a mutant does not import, the tests fail without a mutant, a survivor has no reason, or
fewer than 97 % are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
RECORD = ROOT / "build" / "mutants.json"
LEFT_OUT = ("build", "out", "shared")
"""Folders of the checkout that a copy does not need, beside hidden ones."""
LEAST_KILLED = 0.97
TIMEOUT_S = 180
"""A mutant whose tests run this long is killed: it loops."""

IN_CI = "not e2e and not soak"
"""Only tests of `make test` may kill a mutant."""

PASSED, FAILED, NOT_IMPORTED = 0, 1, 2
"""Exit codes of pytest that are verdicts."""


@dataclass(frozen=True)
class Mutant:
    """One entry of the list. `survives` gives the reason if no test can tell it from the source."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    def digest(self) -> str:
        """Changes with the mutation, its file and its test files."""
        made = blake2b(repr((self.file, self.old, self.new, self.tests)).encode(), digest_size=12)
        for path in (self.file, *self.tests):
            for file in files_of(ROOT / path.partition("::")[0]):
                made.update(file.read_bytes())
        return made.hexdigest()


def files_of(path: Path) -> list[Path]:
    """The file itself, or the modules of a folder of tests."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@dataclass(frozen=True)
class Copies:
    """Copies of the checkout, one for each worker."""

    free: Queue[Path]

    def run(self, mutant: Mutant) -> str:
        """`killed`, `survived` or `broken`, on a copy restored afterwards."""
        copy = self.free.get()
        path = copy / mutant.file
        text = path.read_text("utf-8")
        try:
            path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
            code, _ = run_tests(copy, list(mutant.tests), TIMEOUT_S, [])
        finally:
            path.write_text(text, "utf-8")
            self.free.put(copy)
        return {PASSED: "survived", FAILED: "killed"}.get(code, "broken")


def main() -> None:
    """Run the mutants without a verdict, print the table, end with 1 on a failed run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="mutants at once (default 2)")
    parser.add_argument("--only", nargs="*", default=[], help="names of mutants, or of lists without .toml")
    parser.add_argument("--fresh", action="store_true", help="forget earlier verdicts")
    asked = parser.parse_args()
    mutants = read_lists(asked.only)
    problems = [problem for each in mutants if (problem := mismatch(each))]
    if problems:
        sys.exit("\n".join(["these mutants do not apply (correct tests/mutants):", *problems]))
    known: dict[str, str] = {}
    if RECORD.exists() and not asked.fresh:
        known = json.loads(RECORD.read_text("utf-8"))
    todo = [each for each in mutants if each.digest() not in known]
    print(f"{len(mutants)} mutants, {len(todo)} to run with {asked.workers} workers", flush=True)
    if todo:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copies = [copy_of_checkout(Path(folder) / str(number)) for number in range(asked.workers)]
            check_untouched(copies[0], todo, asked.workers)
            run_all(todo, known, copies)
    report(mutants, known)


def read_lists(only: list[str]) -> list[Mutant]:
    """Mutants in order of their files: all, or those named. Exits if a name is used twice or is unknown."""
    found: list[Mutant] = []
    lists: dict[str, str] = {}
    for path in sorted(LISTS.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]:
            found.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
            if found[-1].name in lists:
                sys.exit(f"tests/mutants: the name {found[-1].name} is used twice")
            lists[found[-1].name] = path.stem
    unknown = sorted(set(only) - lists.keys() - set(lists.values()))
    if unknown:
        sys.exit(f"tests/mutants: no mutant or list of that name: {', '.join(unknown)}")
    return [each for each in found if not only or each.name in only or lists[each.name] in only]


def mismatch(mutant: Mutant) -> str:
    """The reason of a mutant not to apply to the present source; "" if it does."""
    path = ROOT / mutant.file
    missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]
    if missing or not mutant.tests:
        return f"  {mutant.name}: no such test: {', '.join(missing) or 'it names none'}"
    if not path.exists():
        return f"  {mutant.name}: no such file: {mutant.file}"
    text = path.read_text("utf-8")
    times = text.count(mutant.old)
    if times != 1:
        return f"  {mutant.name}: its text occurs {times} times in {mutant.file}, not once"
    try:
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    except SyntaxError as error:
        return f"  {mutant.name}: the mutated file has a syntax error in line {error.lineno}"
    return ""


def check_untouched(copy: Path, todo: list[Mutant], workers: int) -> None:
    """Exit if a test for a mutant fails without it."""
    tests = {test for each in todo for test in each.tests}
    whole = {test for test in tests if "::" not in test}
    named = sorted(test for test in tests if test in whole or test.partition("::")[0] not in whole)
    code, output = run_tests(copy, named, TIMEOUT_S * 6, ["-n", str(workers)], first_failure=False)
    if code != PASSED:
        wrong = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        sys.exit("\n".join(["tests fail without any mutant; correct that first:", *(wrong or [output[-2000:]])]))


def run_all(todo: list[Mutant], known: dict[str, str], copies: list[Path]) -> None:
    """Run mutants in parallel and record each verdict at once."""
    RECORD.parent.mkdir(exist_ok=True)
    free: Queue[Path] = Queue()
    for copy in copies:
        free.put(copy)
    begun = time.monotonic()
    with ThreadPoolExecutor(len(copies)) as pool:
        running = {pool.submit(Copies(free).run, each): each for each in todo}
        try:
            for number, future in enumerate(as_completed(running), 1):
                mutant, verdict = running[future], future.result()
                if verdict != "broken":
                    known[mutant.digest()] = verdict
                    RECORD.write_text(json.dumps(known, indent=1), "utf-8")
                spent_s = time.monotonic() - begun
                print(f"[{number}/{len(todo)}, {spent_s:.0f} s] {mutant.name}: {verdict}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def copy_of_checkout(folder: Path) -> Path:
    """The checkout without hidden, built or cached files."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", *LEFT_OUT)
    return Path(shutil.copytree(ROOT, folder, ignore=left_out))


def run_tests(
    copy: Path, tests: list[str], timeout_s: float, more: list[str], *, first_failure: bool = True
) -> tuple[int, str]:
    """Exit code and output of pytest in a copy of the checkout; tests that do not end in time fail."""
    env = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "HYPOTHESIS_PROFILE": "quick",
        "AUTOPILOT_SHARED_DATA": str(copy / "no-data"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", IN_CI, *more, *tests]
    command += ["-x"] if first_failure else []
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, timeout=timeout_s, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"the tests did not end within {timeout_s:g} s"
    if done.returncode not in {PASSED, FAILED, NOT_IMPORTED}:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode, done.stdout


def report(mutants: list[Mutant], known: dict[str, str]) -> None:
    """The share that was killed, and each survivor with its reason."""
    verdicts = {each: known.get(each.digest(), "broken") for each in mutants}
    killed = sum(verdict == "killed" for verdict in verdicts.values())
    ratio = killed / max(len(mutants), 1)
    print(f"killed {killed} of {len(mutants)} ({100 * ratio:.1f} %)")
    unexplained = False
    for each, verdict in verdicts.items():
        if verdict == "killed":
            if each.survives:
                print(f"  killed, so that its reason to survive is out of date: {each.name}")
            continue
        said = each.survives if verdict == "survived" else "it does not import"
        unexplained |= verdict == "broken" or not each.survives
        print(f"  {verdict}: {each.name}: {said or 'a test is missing'}")
    if ratio < LEAST_KILLED or unexplained:
        sys.exit(1)


if __name__ == "__main__":
    main()

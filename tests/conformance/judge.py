"""One case, judged: by its kind, with every difference in words."""

from __future__ import annotations

from dataclasses import dataclass

from autopilot.core.model.errors import AutopilotError
from tests.conformance.cases import Case, Entry
from tests.conformance.compare import Difference, differences, reasons
from tests.conformance.mig_cases import compare_fit, compare_replan
from tests.conformance.outcome import decide, stays_off


@dataclass(frozen=True)
class Judgement:
    """What came of one case."""

    id: str
    failures: tuple[Difference, ...]
    reasons: tuple[Difference, ...] = ()  # other reasons than expected: for information

    @property
    def line(self) -> str:
        """The failed case in one line: id, expected, got."""
        expected = "; ".join(expected for expected, _ in self.failures)
        return f"{self.id}: expected {expected}; got {'; '.join(got for _, got in self.failures)}".replace("\n", " ")


def judge(entry: Entry) -> Judgement:
    """Put one case to the product. A case that cannot be read or built fails with the reason."""
    if entry.case is None:
        return Judgement(entry.id, (("a case that can be read", entry.error),))
    try:
        return _judged(entry.case)
    except AutopilotError as error:
        return Judgement(entry.id, (("a decision", f"{type(error).__name__}: {error}"),))
    except Exception as error:  # noqa: BLE001 - one broken case must not hide the others
        return Judgement(entry.id, (("a decision", f"a crash, {type(error).__name__}: {error}"),))


def _judged(case: Case) -> Judgement:
    if case.kind == "mig_fit":
        return Judgement(case.id, tuple(compare_fit(case)))
    if case.kind == "mig_replan":
        return Judgement(case.id, tuple(compare_replan(case)))
    world, outcome = decide(case)
    found = differences(world, outcome, lambda gang: stays_off(case, gang))
    return Judgement(case.id, tuple(found), tuple(reasons(case, outcome)))

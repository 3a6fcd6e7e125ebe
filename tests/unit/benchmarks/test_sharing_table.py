"""The table of shared GPUs: medians, differences seed by seed, and demands."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.runs import FIGURES
from benchmarks.sharing import Row, table_of


def _row(useful: float, active: float, **figures: float) -> Row:
    told = {"useful_utilization": useful, "useful_gpu_s": 100.0 * useful, "active_gpu_s": active}
    same = {"capacity_gpu_s": 100.0, "packed_gpu_s": 50.0, "physical_finished_gpu_s": 80.0}
    return Row(dict.fromkeys(FIGURES, float("nan")) | told | same | figures, 100.0, {})


def _cells(off: Sequence[Row | None], on: Sequence[Row | None], name: str = "crowded") -> dict[str, list[str]]:
    return {line[0].partition(": ")[2]: line[1:] for line in table_of(name, off, on)}


def test_a_line_has_both_medians_and_is_judged_by_the_shared_run() -> None:
    """Three seeds: the difference is the median of differences, not the difference of medians."""
    off = [_row(0.40, 40.0), _row(0.30, 30.0), _row(0.50, 50.0)]
    on = [_row(0.45, 46.0), _row(0.45, 46.0), _row(0.51, 51.0)]
    cells = _cells(off, on)
    assert cells["useful utilization, %"] == ["3", "40.0", "45.0", ""]
    assert cells["its difference in points"] == ["3", "-", "5.0", "5.0 < 6.0 MISSED"]
    assert cells["part of the packed bound"] == ["3", "0.80", "0.90", "0.90 >= 0.85"]
    assert cells["useful part of the rise in SM-active"][2] == "0.94"
    assert cells["violations of checkers"] == ["3", "0", "0", "0 <= 0"]


def test_the_same_finished_work_is_compared_by_what_it_asks_for() -> None:
    """Fewer physical GPU-hours because fewer jobs finished are no gain."""
    off, on = _row(0.4, 40.0), _row(0.4, 40.0, physical_finished_gpu_s=40.0)
    assert _cells([off], [on], "demo-shared")["its ratio"] == ["1", "-", "0.500", "0.500 <= 0.900"]
    fewer = Row(on.figures, 50.0, {})
    assert _cells([off], [fewer], "demo-shared")["its ratio"] == ["1", "-", "1.000", "1.000 > 0.900 MISSED"]


def test_one_side_alone_is_shown_without_a_demand_on_both() -> None:
    """A run that was not asked for leaves its cells empty, and a figure that nothing states has no line."""
    cells = _cells([_row(0.4, 40.0)], [None])
    assert cells["useful utilization, %"] == ["1", "40.0", "-", ""]
    assert not {"its difference in points", "stretch of batch work, mean"} & set(cells)

"""The ring buffer of sliding windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.hardware.dcgm import SIGNALS, WINDOWS_S, Quality
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Telemetry
from collectors.window import BLOCK_SLOTS, WindowBuffer

NAN = float("nan")


def ids(*names: str) -> np.ndarray:
    """Entity ids as the buffer takes them."""
    return np.array(names, dtype=object)


def put(buffer: WindowBuffer, now_s: float, sample: dict[str, float], quality: int = 3) -> None:
    """Put one activity sample per entity; every other signal is unknown."""
    values = np.full((len(buffer.signals), len(sample)), NAN, np.float32)
    values[0] = list(sample.values())
    buffer.put(now_s, ids(*sample), values, np.full(len(sample), quality, np.int8))


def row(telemetry: Telemetry, entity: str) -> int:
    """Column of an entity."""
    return list(telemetry.entity_ids).index(entity)


def test_windows_hold_mean_maximum_count_and_age() -> None:
    """Each window answers for its own samples only."""
    buffer = WindowBuffer()
    for k in range(40):  # 0 .. 585 s
        put(buffer, 15.0 * k, {"a": k / 100})
    seen = buffer.windowed(590.0)
    assert list(seen.samples[:, 0]) == [4, 20, 40]
    assert seen.mean[0, :, 0] == pytest.approx([0.375, 0.295, 0.195])
    assert seen.maximum[0, :, 0] == pytest.approx([0.39, 0.39, 0.39])
    assert seen.age_s[0] == pytest.approx(5.0)
    assert np.isnan(seen.mean[1:]).all()
    assert np.isnan(seen.maximum[1:]).all()


def test_a_maximum_leaves_its_window() -> None:
    """A peak counts as long as its sample is inside, not longer."""
    buffer = WindowBuffer()
    for k in range(30):
        put(buffer, 15.0 * k, {"a": 0.9 if k == 2 else 0.1})
    seen = buffer.windowed(435.0)
    assert seen.maximum[0, :, 0] == pytest.approx([0.1, 0.1, 0.9])


def test_unknown_stays_unknown() -> None:
    """A NaN sample adds nothing: no zero, no count, no freshness."""
    buffer = WindowBuffer()
    put(buffer, 0.0, {"a": 0.5, "b": NAN})
    put(buffer, 15.0, {"a": NAN, "b": NAN})
    seen = buffer.windowed(15.0)
    assert list(seen.samples[0]) == [1, 0]
    assert seen.mean[0, 0, 0] == 0.5
    assert np.isnan(seen.mean[0, :, 1]).all()
    assert np.isnan(seen.maximum[0, :, 1]).all()
    assert list(seen.age_s) == [15.0, np.inf]
    assert seen.quality[1] == Quality.NONE


def test_a_failed_scrape_is_absent() -> None:
    """Without samples the count falls, the age grows, and the mean turns unknown, never zero."""
    buffer = WindowBuffer()
    for k in range(4):
        put(buffer, 15.0 * k, {"a": 0.8})
    assert list(buffer.windowed(90.0).samples[:, 0]) == [1, 4, 4]
    seen = buffer.windowed(200.0)
    assert list(seen.samples[:, 0]) == [0, 4, 4]
    assert np.isnan(seen.mean[0, 0, 0])
    assert seen.age_s[0] == pytest.approx(155.0)


def test_entities_come_and_go() -> None:
    """A re-cut GPU's old instance leaves after the longest window; new ones start with nothing."""
    buffer = WindowBuffer()
    put(buffer, 0.0, {"g/1": 0.5, "g/2": 0.5})
    for k in range(1, 130):
        put(buffer, 15.0 * k, {"g/2": 0.25, "g/9": 0.75})
    seen = buffer.windowed(15.0 * 129)
    assert sorted(seen.entity_ids) == ["g/2", "g/9"]
    assert seen.mean[0, :, row(seen, "g/9")] == pytest.approx([0.75] * 3)
    assert seen.mean[0, :, row(seen, "g/2")] == pytest.approx([0.25] * 3)
    put(buffer, 15.0 * 130, {"g/1": 0.1})
    assert "g/1" in list(buffer.windowed(15.0 * 130).entity_ids)


def test_order_of_entities_may_change() -> None:
    """Samples follow the entity, not the position."""
    buffer = WindowBuffer()
    put(buffer, 0.0, {"a": 0.1, "b": 0.2})
    put(buffer, 15.0, {"b": 0.4, "c": 0.6, "a": 0.3})
    seen = buffer.windowed(15.0)
    assert {e: round(float(m), 6) for e, m in zip(seen.entity_ids, seen.mean[0, 0], strict=True)} == {
        "a": 0.2,
        "b": 0.3,
        "c": 0.6,
    }


def test_two_samples_in_one_slot_keep_the_newer() -> None:
    """A faster scrape does not count twice, and targets of one round share a slot."""
    buffer = WindowBuffer(slot_s=10.0)
    put(buffer, 0.0, {"a": 0.9})
    put(buffer, 3.0, {"b": 0.3})
    put(buffer, 6.0, {"a": 0.1})
    seen = buffer.windowed(6.0)
    assert list(seen.samples[0]) == [1, 1]
    assert seen.mean[0, 0] == pytest.approx([0.1, 0.3])
    assert seen.maximum[0, 0] == pytest.approx([0.1, 0.3])
    assert list(seen.age_s) == [0.0, 3.0]


def test_quality_is_the_lowest_inside() -> None:
    """A mean that a worse counter helped to make is marked with the worse counter."""
    buffer = WindowBuffer()
    put(buffer, 0.0, {"a": 1.0}, Quality.GPU_UTIL)
    for k in range(1, 160):
        put(buffer, 15.0 * k, {"a": 0.2}, Quality.SM_ACTIVE)
        worst = buffer.windowed(15.0 * k).quality[0]
        if 15.0 * k < 1800.0:
            assert worst == Quality.GPU_UTIL
    assert worst == Quality.SM_ACTIVE


def test_a_clock_set_back_forgets() -> None:
    """When time runs backwards ages mean nothing, so nothing is known."""
    buffer = WindowBuffer()
    put(buffer, 10_000.0, {"a": 0.5})
    assert len(buffer.windowed(9_000.0).entity_ids) == 0
    put(buffer, 9_001.0, {"a": 0.25})
    assert buffer.windowed(9_001.0).mean[0, 0, 0] == 0.25


def test_a_very_late_sample_is_left_out() -> None:
    """A scrape that arrives after its window has passed is not read as fresh."""
    buffer = WindowBuffer()
    put(buffer, 100.0, {"a": 0.5})
    put(buffer, 20.0, {"b": 0.5})
    assert list(buffer.windowed(100.0).entity_ids) == ["a"]


def test_nothing_new_returns_the_same_arrays() -> None:
    """Between two scrapes only the age moves."""
    buffer = WindowBuffer()
    put(buffer, 0.0, {"a": 0.5})
    first, second = buffer.windowed(1.0), buffer.windowed(2.0)
    assert second.mean is first.mean
    assert (first.age_s[0], second.age_s[0]) == (1.0, 2.0)


def test_slot_longer_than_a_window_is_refused() -> None:
    """A slot that no window can hold is an input error that names the field."""
    with pytest.raises(InputError, match="slot_s"):
        WindowBuffer(slot_s=61.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4 * BLOCK_SLOTS))
def test_windows_equal_a_plain_computation(seed: int, scrapes: int) -> None:
    """For any order of gaps, entities and NaN, the buffer equals numpy over the kept samples."""
    rng = np.random.default_rng(seed)
    buffer = WindowBuffer(slot_s=1.0)
    log: list[tuple[float, dict[str, np.ndarray]]] = []
    now_s = 0.0
    for _ in range(scrapes):
        now_s += float(rng.choice([15.0, 15.0, 31.0, 200.0, 900.0]))
        present = [name for name in "abcdef" if rng.random() < 0.7]
        values = rng.random((len(SIGNALS), len(present)), np.float32)
        values[rng.random(values.shape) < 0.2] = NAN
        buffer.put(now_s, ids(*present), values, np.full(len(present), 3, np.int8))
        log.append((now_s, dict(zip(present, values.T, strict=True))))
        if rng.random() < 0.5:
            buffer.windowed(now_s + 1.0)
    now_s += float(rng.choice([0.0, 10.0, 400.0]))
    seen = buffer.windowed(now_s)
    for w, width in enumerate(WINDOWS_S):
        for entity in seen.entity_ids:
            column = row(seen, entity)
            inside = [sample[entity] for at, sample in log if at > now_s - width and entity in sample]
            stack = np.array(inside, float).reshape(-1, len(SIGNALS))
            known = (~np.isnan(stack)).sum(axis=0)
            assert seen.samples[w, column] == known[0]
            total = np.nansum(stack, axis=0)
            mean = np.divide(total, known, out=np.full(len(SIGNALS), NAN), where=known > 0)
            peak = np.array([np.nanmax(c) if k else NAN for c, k in zip(stack.T, known, strict=True)])
            np.testing.assert_allclose(seen.mean[:, w, column], mean, rtol=1e-5)
            np.testing.assert_allclose(seen.maximum[:, w, column], peak, rtol=1e-6)
    expected = {e for at, sample in log if at > now_s - WINDOWS_S[-1] for e in sample}
    assert set(seen.entity_ids) == expected


def test_sums_do_not_drift() -> None:
    """After a burst of 1e12 B/s an idle link reads as idle again."""
    buffer = WindowBuffer(slot_s=1.0)
    values = np.full((len(SIGNALS), 1), NAN, np.float32)
    for k in range(400):
        values[SIGNALS.index("nvlink_bytes_s"), 0] = 1e12 / 3 if k < 100 else 0.0
        buffer.put(15.0 * k, ids("a"), values, np.zeros(1, np.int8))
        seen = buffer.windowed(15.0 * k)
    assert seen.mean[SIGNALS.index("nvlink_bytes_s"), :, 0] == pytest.approx([0.0] * 3, abs=1e-2)

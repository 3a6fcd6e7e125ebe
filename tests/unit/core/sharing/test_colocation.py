"""The predicted rates of sharers: by mechanism, memory first, corrected by pair, and the reasons to abstain."""

from __future__ import annotations

import math

import pytest

from autopilot.core.model.colocation import RULE, Colocation, Mechanism, Pair
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.sharing.colocation import (
    WHOLE,
    Abstention,
    Part,
    Prediction,
    Reason,
    Sharer,
    predicted_rates,
    profile_of,
)

GPU, MIB, NAN = "A100-80GB", 80_000.0, math.nan
TURNS, MPS, MIG = Mechanism.TIME_SLICING, Mechanism.MPS, Mechanism.MIG
HALF, SEVENTHS = Part(0.5, 0.5), Part(3 / 7, 0.5)


def profile(peak_mib: float = 20_000.0, **ratios: float) -> LoneProfile:
    """Half of everything, but for `ratios`."""
    known = {"sm_ratio": 0.5, "dram_ratio": 0.45, "duty_ratio": 0.5, "power_ratio": 0.5} | ratios
    return LoneProfile(peak_mib, 3600.0, 0.0, **known)


def rates(mechanism: Mechanism, *profiles: LoneProfile, part: Part = WHOLE, learned: Colocation = RULE) -> Prediction:
    """The prediction for work named a, b, ..."""
    sharers = [Sharer(chr(97 + at), each, part) for at, each in enumerate(profiles)]
    found = predicted_rates(sharers, mechanism, GPU, MIB, learned)
    assert isinstance(found, Prediction)
    return found


LIGHT, ALWAYS = profile(duty_ratio=0.3), profile(duty_ratio=1.0)
BOUND = profile(dram_ratio=0.9, duty_ratio=NAN)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (rates(TURNS, LIGHT), [1.0]),
        (rates(TURNS, LIGHT, LIGHT), [0.91] * 2),
        (rates(TURNS, ALWAYS, LIGHT), [0.7, 0.7]),  # 1 - the neighbour's duty
        (rates(TURNS, LIGHT, LIGHT, LIGHT), [0.91**2] * 3),
        (rates(MPS, profile(duty_ratio=NAN), profile(duty_ratio=NAN)), [0.875, 0.875]),  # SMs, and DRAM over 0.9
        (rates(MPS, BOUND, BOUND), [0.5, 0.5]),  # the memory is the scarcer one
        (rates(MPS, profile(), profile(duty_ratio=0.9)), [0.775, 0.775]),  # the duty is the more cautious
        (rates(MPS, LIGHT, LIGHT, LIGHT), [0.875**2] * 3),
        (rates(MIG, profile(dram_ratio=0.25), ALWAYS, part=SEVENTHS), [0.6, 1 / (1 - 0.45**0.5 * (1 - 7 / 3))]),
        (rates(MPS, profile(dram_ratio=0.2), part=HALF), [1 / 1.5]),  # the device plugin's cap of threads
    ],
)
def test_each_mechanism_has_its_rule(found: Prediction, expected: list[float]) -> None:
    """By duty in turns, by the scarcest resource side by side, by Amdahl on a part."""
    assert found.rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("found", "admitted"),
    [
        (rates(TURNS, LIGHT, LIGHT), True),
        (rates(TURNS, LIGHT, LIGHT, LIGHT, LIGHT), False),  # together above 1
        (rates(TURNS, ALWAYS, LIGHT), False),
        (rates(TURNS, profile(36_000.0, duty_ratio=0.1), profile(37_700.0, duty_ratio=0.1)), False),  # 0.921
        (rates(TURNS, profile(36_000.0, duty_ratio=0.1), profile(37_600.0, duty_ratio=0.1)), True),
        (rates(MIG, profile(36_000.0, dram_ratio=0.01, power_ratio=0.1), part=HALF), True),
        (rates(MIG, profile(37_000.0, dram_ratio=0.01, power_ratio=0.1), part=HALF), False),  # of its own memory
        (rates(MPS, profile(37_000.0, sm_ratio=0.1), part=HALF), False),
    ],
)
def test_sharers_are_admitted_by_memory_rate_and_load(found: Prediction, *, admitted: bool) -> None:
    """All three have to hold for all."""
    assert found.admitted is admitted


def test_a_correction_belongs_to_one_pair_in_one_direction() -> None:
    """It is added to the rate of its own work, under its mechanism and model, and no rate leaves its bounds."""
    learned = Colocation("m", 0.0, {Pair("a", "b", TURNS, GPU): -0.2, Pair("b", "a", TURNS, "H100"): -0.9})
    plain = rates(TURNS, LIGHT, LIGHT).rates
    assert rates(TURNS, LIGHT, LIGHT, learned=learned).rates == pytest.approx((plain[0] - 0.2, plain[1]))
    assert rates(MPS, LIGHT, LIGHT, learned=learned).rates == rates(MPS, LIGHT, LIGHT).rates
    wild = Colocation("m", 0.0, {Pair("a", "b", TURNS, GPU): -3.0, Pair("b", "a", TURNS, GPU): 3.0})
    assert rates(TURNS, LIGHT, LIGHT, learned=wild).rates == (0.05, 1.0)


KNOWN = ProfilesMemory(
    {
        GPU: {
            "t/u\nn\nv1": profile(),
            "t/u\nyoung\n": LoneProfile(1.0, 1799.0, 0.0),
            "t/u\nfuture\n": LoneProfile(1.0, 1800.0, 14 * 86400.0 + 10.0),
        }
    }
)


@pytest.mark.parametrize(
    ("gpu", "kind", "now_s", "reason"),
    [
        (GPU, "t/u\nn\nv1", 14 * 86400.0, None),
        (GPU, "t/u\nn\nv1", 14 * 86400.0 + 1.0, Reason.TOO_OLD),
        (GPU, "t/u\nfuture\n", 0.0, Reason.TOO_OLD),
        (GPU, "t/u\nn\nv2", 0.0, Reason.OTHER_IMAGE),
        (GPU, "t/u\nyoung\n", 0.0, Reason.TOO_YOUNG),
        (GPU, "t/v\nn\nv1", 0.0, Reason.NO_PROFILE),
        ("H100-80GB", "t/u\nn\nv1", 0.0, Reason.NO_PROFILE),
    ],
)
def test_a_profile_is_used_while_it_is_fresh_and_of_this_work(
    gpu: str, kind: str, now_s: float, reason: Reason | None
) -> None:
    """Otherwise the reason stands in its place."""
    found = profile_of(KNOWN, gpu, kind, now_s)
    assert (found.reason if isinstance(found, Abstention) else None) == reason
    assert not isinstance(found, Abstention) or found.words


@pytest.mark.parametrize(
    ("mechanism", "own", "memory_mib", "reason"),
    [
        (TURNS, Abstention(Reason.TOO_OLD, "b"), MIB, Reason.TOO_OLD),
        (TURNS, profile(), NAN, Reason.MEMORY_UNKNOWN),
        (TURNS, profile(), 0.0, Reason.MEMORY_UNKNOWN),
        (TURNS, profile(NAN), MIB, Reason.MEMORY_UNKNOWN),
        (TURNS, profile(duty_ratio=NAN), MIB, Reason.SIGNAL_UNKNOWN),
        (MPS, profile(sm_ratio=NAN), MIB, Reason.SIGNAL_UNKNOWN),
        (MPS, profile(dram_ratio=NAN), MIB, Reason.SIGNAL_UNKNOWN),
    ],
)
def test_without_knowledge_of_one_sharer_nothing_is_predicted(
    mechanism: Mechanism, own: LoneProfile | Abstention, memory_mib: float, reason: Reason
) -> None:
    """The others do not stand in for it."""
    found = predicted_rates([Sharer("a", profile()), Sharer("b", own)], mechanism, GPU, memory_mib)
    assert isinstance(found, Abstention)
    assert found.reason == reason


def test_an_instance_needs_power_and_memory_activity() -> None:
    """Amdahl takes both."""
    for gone in ("power_ratio", "dram_ratio"):
        found = predicted_rates([Sharer("a", profile(**{gone: NAN}), SEVENTHS)], MIG, GPU, MIB)
        assert isinstance(found, Abstention)

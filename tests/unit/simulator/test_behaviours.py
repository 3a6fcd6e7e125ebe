"""How a job gets its look on a GPU, and whether the looks are those that were measured."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.signals.behaviours import (
    BEHAVIOURS,
    BOARDS,
    LEVEL_POINTS,
    MIXES,
    Archetype,
    board_of,
    draw_jobs,
    mix_of,
)
from simulator.signals.telemetry import METRICS, TelemetryGenerator
from simulator.signals.telemetry_entities import entities_of, idle_state
from tests.kits.telemetry_world import OCCUPANCY, SM, inventory

ROOT = Path(__file__).resolve().parents[3]


def test_a_job_keeps_its_look_whatever_else_is_drawn() -> None:
    """Archetype and level depend on seed, id and hints only."""
    ids = [f"job-{k}" for k in range(200)]
    kinds, levels = draw_jobs(3, ids)
    again, again_levels = draw_jobs(3, ids[::-1])
    np.testing.assert_array_equal(kinds, again[::-1])
    np.testing.assert_array_equal(levels, again_levels[::-1])
    assert (draw_jobs(4, ids)[1] != levels).mean() > 0.8


def test_hints_steer_the_draw() -> None:
    """Kind, name and service class choose the mix; a telling name chooses the archetype."""
    assert mix_of(kind="inference_HN") == "inference"
    assert mix_of(name="bert-finetune") == "training"
    assert mix_of(slo_class="latency-critical") == "inference"
    assert mix_of(slo_class="interactive") == "interactive"
    assert mix_of() == "unknown"
    assert mix_of(kind="batch", name="jupyter-lab") == "training"
    ids = [str(k) for k in range(300)]
    serving = set(draw_jobs(1, ids, kinds=["inference"] * 300)[0])
    assert serving <= set(MIXES["inference"])
    assert len(serving) == len(MIXES["inference"])
    assert set(draw_jobs(1, ids[:9], names=["llm-decode-pool"] * 9)[0]) == {Archetype.DECODE}


def test_shares_and_levels_are_whole() -> None:
    """Every mix sums to one; levels rise from 0 to at most 1; boards idle below loaded below limit."""
    for mix in MIXES.values():
        assert sum(mix.values()) == pytest.approx(1.0)
    for behaviour in BEHAVIOURS.values():
        assert list(behaviour.levels) == sorted(behaviour.levels)
        assert behaviour.levels[-1] <= 1.0
        assert behaviour.duty * behaviour.gain <= 1.0  # or the low phase would be below zero
    for board in BOARDS.values():
        assert board.idle_w < board.loaded_w < board.limit_w


def test_the_longest_model_name_counts() -> None:
    """A board is found by its model; an unknown one still is a board."""
    assert board_of("A100-40GB").memory_mib == 40 * 1024
    assert board_of("A100-80GB").memory_mib == 80 * 1024
    assert board_of("H200").product == "NVIDIA H200"
    assert board_of("XPU-9").product == "XPU-9"


# --- against the measurements -------------------------------------------------------------------


HELD = 0.743
RUNS = {
    "t3": ("compute", Archetype.COMPUTE_TRAINING, 0.88),
    "t2": ("small", Archetype.SMALL_TRAINING, 0.64),
    "t13_node0": ("communication", Archetype.COMMUNICATION_TRAINING, 0.45),
    "i4": ("light_inference", Archetype.LIGHT_INFERENCE, 0.24),
}


def fit_script() -> dict[str, Any]:
    """The functions of the script that fits the constants."""
    return runpy.run_path(str(ROOT / "scripts" / "fit_telemetry.py"))


def planted(folder: Path) -> Path:
    """Data sets with the columns of the real ones, made from the constants themselves."""
    tables = {"h100_telemetry_runs/gpu_1s": _planted_runs(), "acme_util_cdf/quantiles_raw": _planted_fleet()}
    pods = np.repeat(np.interp(np.linspace(0, 1, 201), LEVEL_POINTS, BEHAVIOURS[Archetype.NOTEBOOK].levels), 10)
    tables["gentd26/gpu_util"] = pd.DataFrame(
        {
            "pod": np.repeat(np.arange(201), 10),
            "gpu_util": pods * 100,
            "mem_used_mib": 20_000.0,
        }
    )
    for name, table in tables.items():
        (folder / name).parent.mkdir()
        table.to_parquet(folder / f"{name}.parquet")
    return folder


def _planted_runs() -> pd.DataFrame:
    board, rows = board_of("H100-80GB"), []
    for run, (_, archetype, level) in RUNS.items():
        look = BEHAVIOURS[archetype]
        links = look.nvlink_per_sm * level / 2, look.pcie_per_sm * level / 2
        watts = board.loaded_w + look.power_per_sm * board.limit_w * level
        util = 100 * (1 - (1 - level) ** look.busy_exponent)
        ratios = look.tensor_per_sm * level, look.dram_per_sm * level
        rows += [(run, "steady", t, g, util, level, *ratios, *links, *links, watts) for t in range(60) for g in (0, 1)]
    for phase, watts in (("init", board.idle_w), ("loading", 100.0), ("steady", board.loaded_w)):
        rows += [("b1", phase, t, 0, 0.0, 0.0, 0.0, 0.0, *(0.0,) * 4, watts) for t in range(60)]
    names = ["run", "phase", "t_s", "gpu", "gpu_util", "sm_active", "tensor_active", "dram_active"]
    links_of = ["nvlink_tx_bytes_s", "pcie_tx_bytes_s", "nvlink_rx_bytes_s", "pcie_rx_bytes_s"]
    return pd.DataFrame(rows, columns=[*names, *links_of, "power_w"])


def _planted_fleet() -> pd.DataFrame:
    held = round(1000 * HELD)
    parts = [np.zeros(1000 - held)]
    for archetype, share in MIXES["training"].items():
        count = round(held * share)
        level = BEHAVIOURS[archetype].fixed_level
        spread = np.interp(np.linspace(0, 1, count), LEVEL_POINTS, BEHAVIOURS[archetype].levels)
        parts.append(spread if level is None else np.full(count, level))
    sm = np.sort(np.concatenate(parts))
    values = {
        "sm_active": sm,
        "sm_occupancy": 0.279 * sm,
        "gpu_util": np.where(sm > 0, 1.0, 0.0),
        "fb_used": np.linspace(0, 1, len(sm)) > 1 - HELD,
        "gpu_power": 0.6 + 3 * sm,
    }
    at = np.linspace(0, 1, len(sm))
    return pd.concat(
        [
            pd.DataFrame({"cluster": "seren", "metric": name, "quantile": at, "value": 100.0 * np.asarray(value)})
            for name, value in values.items()
        ]
    )


@pytest.fixture
def data(shared_data: Path | None, tmp_path: Path, ran_on: Callable[[str], None]) -> Path:
    """The measurements, or data planted from the constants where there are none."""
    ran_on("acme_util_cdf, h100_telemetry_runs, gentd26" if shared_data else "synthetic")
    return shared_data or planted(tmp_path)


def check_relations(script: dict[str, Any], folder: Path) -> dict[str, dict[str, float]]:
    """The relations fitted to `folder`, after comparing them with the constants."""
    relations: dict[str, dict[str, float]] = script["fit_relations"](folder)
    for name, archetype, _ in RUNS.values():
        constants, found = BEHAVIOURS[archetype], relations[name]
        for field in ("tensor_per_sm", "dram_per_sm", "busy_exponent", "power_per_sm"):
            assert getattr(constants, field) == pytest.approx(found[field], rel=0.01), (name, field)
        assert constants.nvlink_per_sm == pytest.approx(found["nvlink_bytes_s_per_sm"], rel=0.01)
        assert constants.pcie_per_sm == pytest.approx(found["pcie_bytes_s_per_sm"], rel=0.01)
    idle, board = script["fit_idle"](folder), board_of("H100-80GB")
    assert (board.idle_w, board.loaded_w) == pytest.approx((idle["idle_w"], idle["loaded_w"]), rel=0.01)
    return relations


def test_the_script_finds_planted_relations(tmp_path: Path) -> None:
    """On data made from known constants the script prints those constants."""
    script, folder = fit_script(), planted(tmp_path)
    check_relations(script, folder)
    fleet = script["fit_fleet"](folder)
    assert fleet["held_share"] == pytest.approx(HELD, abs=0.003)
    assert fleet["hoarder_share"] == pytest.approx(MIXES["training"][Archetype.HOARDER], abs=0.005)
    assert sum(fleet["shares"].values()) + fleet["hoarder_share"] == pytest.approx(1.0, abs=0.02)
    levels = script["fit_bursts"](folder, 1.0)["levels"]
    assert levels == pytest.approx(BEHAVIOURS[Archetype.NOTEBOOK].levels, abs=0.001)


def test_constants_are_those_that_the_script_prints(data: Path, shared_data: Path | None) -> None:
    """Relations, and where the real data is there levels and shares, are what the script fits."""
    script = fit_script()
    relations = check_relations(script, data)
    if shared_data is None:
        return
    fleet = script["fit_fleet"](data)
    training = {name: archetype for name, archetype, _ in RUNS.values() if name in fleet["levels"]}
    for name, archetype in training.items():
        assert BEHAVIOURS[archetype].levels == fleet["levels"][name]
        assert MIXES["training"][archetype] == pytest.approx(fleet["shares"][name], abs=0.001)
    assert BEHAVIOURS[Archetype.STARVED_TRAINING].levels == fleet["levels"]["starved"]
    assert MIXES["training"][Archetype.HOARDER] == pytest.approx(fleet["hoarder_share"], abs=0.001)
    bursts = script["fit_bursts"](data, relations["light_inference"]["sm_per_busy"])
    assert BEHAVIOURS[Archetype.NOTEBOOK].levels == bursts["levels"]


def test_a_fleet_resembles_the_measured_one(data: Path) -> None:
    """With Seren's share of unallocated GPUs, SM activity, occupancy and idle util follow its quantiles."""
    table = pd.read_parquet(data / "acme_util_cdf" / "quantiles_raw.parquet")
    table = table[table["cluster"] == "seren"]
    entities, state = entities_of(inventory(500, 8)), idle_state(4000)
    rows = np.arange(int(4000 * HELD))
    kinds, levels = draw_jobs(11, [str(k) for k in rows])
    state.archetype[rows], state.level[rows], state.job_code[rows] = kinds, levels, rows
    generator, slots = TelemetryGenerator(5), np.arange(100, 400, 20)
    values, _ = generator.values(slots, entities, state)
    for metric, row in (("sm_active", SM), ("sm_occupancy", OCCUPANCY)):
        known = table[table["metric"] == metric]
        at = np.array([0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
        wanted = np.interp(at, known["quantile"], known["value"] / 100)
        np.testing.assert_allclose(np.quantile(values[row], at), wanted, atol=0.08)
    util = generator.metrics(slots, entities, state)[METRICS.index(203)]
    measured = table[table["metric"] == "gpu_util"]["value"].to_numpy()
    assert np.mean(util == 0) == pytest.approx(np.mean(measured <= 0), abs=0.04)

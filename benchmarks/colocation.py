"""Predicted against true rates of work on one GPU, on families of programs that no fit saw.

By table of measured pairs: the mean error of the shipped rule and of a fit (models/colocation.py), and the part that is
too optimistic by more than 0.15. The demand is 0.08, and 3 %. The fit serves only where the gate lets it: the column
says so. Tables: MISO's MIG slices and Gavel's pairs (those of the simulator); Tally's pairs, for study, where
`../shared/data/colocation` is at hand; and, by path, those that somebody measured (docs/shared-gpus.md).

Gavel's table has no profile of its kinds. The use of each is taken from its rate beside itself: 1 - u u / 2.

    python -m benchmarks colocation [PAIRS.json ...] [--json OUT]
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.hardware.idle_power import limit_w
from autopilot.core.model.colocation import RULE, Mechanism, Pair
from autopilot.core.model.memory.profiles import LoneProfile
from autopilot.core.sharing.colocation import ADMIT_RATE, Part
from autopilot.core.sharing.sharers import Observed
from benchmarks.kit import ROOT, data_folder, judged, options, table, write_json
from models.colocation import OPTIMISTIC_RATE, held_out_rates, proved, rule_rates
from models.colocation_table import read_pairs

SHIPPED = ROOT / "simulator" / "world" / "interference"
TABLES = SHIPPED if SHIPPED.exists() else data_folder() / "colocation"
GOAL_ERROR, GOAL_OPTIMISTIC = 0.08, 0.03
LEFT_OUT = "deepspeech2"
"""Its iterations differ in length, so that its medians on a slice are not those of the same work."""
SLICES = {"1g": 1 / 7, "2g": 2 / 7, "3g": 3 / 7, "4g": 4 / 7}

Rows = tuple[Observed, ...]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def profile(use: float, **ratios: float) -> LoneProfile:
    """A profile with this duty, and as the SM activity too where the table has no other."""
    return LoneProfile(1.0, 3600.0, 0.0, **({"sm_ratio": use, "dram_ratio": 0.0, "duty_ratio": use} | ratios))


def miso(folder: Path = TABLES) -> Rows:
    """Instances of an A100-40GB, relative to the whole GPU."""
    rows = [row for row in rows_of(folder / "miso_mig_a100.csv") if row["model"] != LEFT_OUT]
    whole = {(row["model"], row["batch"]): row for row in rows if row["profile"].startswith("7g")}
    found = []
    for row in rows:
        alone, size = whole[row["model"], row["batch"]], SLICES.get(row["profile"][:2])
        if size is not None:
            own = profile(
                float(alone["util_sm_pct"]) / 100,
                dram_ratio=float(alone["util_mem_pct"]) / 100,
                power_ratio=float(alone["power_w"]) / limit_w("A100-40GB"),
            )
            rate = float(alone["iter_s_median"]) / float(row["iter_s_median"])
            pair = Pair(f"{row['model']} {row['batch']}", "", Mechanism.MIG, "A100-40GB")
            found.append(Observed(pair, own, None, min(rate, 1.0), row["model"], part=Part(size, size)))
    return in_turn(found)


def gavel(gpu: str, folder: Path = TABLES) -> Rows:
    """Pairs of different trainings as two processes, in both directions; out of memory is left out."""
    rows = [row for row in rows_of(folder / "gavel_pairs.csv") if row["gpu"] == gpu]
    alone = {row["a"]: float(row["rate_a"]) for row in rows if not row["b"]}
    pairs = [row for row in rows if row["b"] and float(row["rate_a"]) > 0 and float(row["rate_b"]) > 0]
    beside_itself = {row["a"]: float(row["rate_a"]) / alone[row["a"]] for row in pairs if row["a"] == row["b"]}
    use = {kind: math.sqrt(min(max(2.0 * (1.0 - rate), 0.0), 1.0)) for kind, rate in beside_itself.items()}
    found = []
    for row in pairs:
        a, b = row["a"], row["b"]
        if a != b and a in use and b in use:
            rate = min(float(row["rate_a"]) / alone[a], 1.0)
            families = a.split(" (")[0], b.split(" (")[0]
            pair = Pair(a, b, Mechanism.MPS, gpu.upper())
            found.append(Observed(pair, profile(use[a]), profile(use[b]), rate, *families))
    return in_turn(found)


def tally(mechanism: Mechanism, folder: Path) -> Rows:
    """Trainings beside a service at half load on an A100: the rate of the training."""
    alone = {row["exp_key"]: float(row["gpu_util"]) / 100 for row in rows_of(folder / "tally_a100_single.csv")}
    found = []
    for row in rows_of(folder / "tally_a100_inference_training.csv"):
        if row["mechanism"] == mechanism.replace("-", "_"):
            own, other = f"pytorch_{row['training']}", f"onnxruntime_{row['inference']}_infer_server_load_0.5_1"
            pair = Pair(own, other, mechanism, "A100-40GB")
            rate = min(float(row["train_rate"]), 1.0)
            families = row["training"], row["inference"]
            found.append(Observed(pair, profile(alone[own]), profile(alone[other]), rate, *families))
    return in_turn(found)


def measured_on(path: Path) -> Rows:
    """The pairs of a file of `scripts/measure_pairs.py`."""
    return in_turn(read_pairs(json.loads(path.read_text("utf-8")), str(path)))


def in_turn(rows: Sequence[Observed]) -> Rows:
    """The rows in a fixed mixed order, one after another: a table has no times, and the gate compares parts of them."""
    order = np.random.default_rng(0).permutation(len(rows))
    made = [rows[place] for place in order]
    return tuple(
        Observed(each.pair, each.own, each.other, each.rate, each.family, each.other_family, each.part, float(at))
        for at, each in enumerate(made)
    )


def figures(rows: Rows) -> dict[str, Any]:
    """Errors of rule and fit on families not seen, and whether the fit may serve."""
    rates, found = np.array([row.rate for row in rows]), dict[str, Any]()
    rule = rule_rates(rows)
    for name, predicted in (("rule", rule), ("fit", held_out_rates(rows))):
        error = predicted - rates
        found[name] = {
            "mean_error": float(np.abs(error).mean()),
            "too_optimistic_ratio": float((error > OPTIMISTIC_RATE).mean()),
        }
    kept = rule >= ADMIT_RATE
    found["admitted"] = {
        "rows": int(kept.sum()),
        "mean_error": float(np.abs(rule - rates)[kept].mean()) if kept.any() else math.nan,
        "too_optimistic_ratio": float((rule - rates > OPTIMISTIC_RATE)[kept].mean()) if kept.any() else math.nan,
    }
    verdict = proved(rows, RULE, lambda: np.random.default_rng(7))
    return found | {"rows": len(rows), "serves": "fit" if verdict.passed else "rule"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. The exit code is always 0: what falls short is stated in docs/shared-gpus.md."""
    given = options(__doc__, arguments, pairs=[])
    study = data_folder() / "colocation"
    sources: dict[str, Callable[[], Rows]] = {
        "MISO, MIG, A100": miso,
        **{f"Gavel, two processes, {gpu.upper()}": partial(gavel, gpu) for gpu in ("v100", "p100", "k80")},
    }
    if study.exists():
        for mechanism in (Mechanism.TIME_SLICING, Mechanism.MPS):
            sources[f"Tally, {mechanism}, A100 (study)"] = partial(tally, mechanism, study)
    else:
        print(f"SKIPPED: Tally's pairs: {study} is absent")
    for path in given.pairs:
        sources[path.name] = partial(measured_on, path)
    found = {name: figures(make()) for name, make in sources.items()}
    heading = ("table", "rows", "rule: error", "too optimistic, %", "fit: error", "too optimistic, %", "serves")
    lines = []
    for name, each in found.items():
        cells = [
            cell
            for who in ("rule", "fit")
            for cell in (
                judged(each[who]["mean_error"], GOAL_ERROR, digits=3),
                judged(100 * each[who]["too_optimistic_ratio"], 100 * GOAL_OPTIMISTIC, digits=1),
            )
        ]
        lines.append((name, str(each["rows"]), *cells, each["serves"]))
    table(heading, lines)
    for name, each in found.items():
        kept = each["admitted"]
        print(
            f"{name}: the rule admits {kept['rows']}, with an error of {kept['mean_error']:.3f} and "
            f"{100 * kept['too_optimistic_ratio']:.1f} % too optimistic"
        )
    write_json(given.json, found)
    return 0

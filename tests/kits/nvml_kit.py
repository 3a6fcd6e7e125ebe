"""What runs the NVML collector on a stand-in for the driver's library, and what it tells of each batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tests" / "kits" / "nvml_stub.c"

DRIVER = """
import json, math, sys
from pathlib import Path
import numpy as np
from collectors.nvml import NvmlCollector
from tests.kits.batch_kit import check_batch

state, steps = Path(sys.argv[1]), json.loads(sys.argv[2])
collector = NvmlCollector("node-a", slot_s=1.0)
answers = []
for step in steps:
    state.write_text(step["state"])
    batch = collector.collect(step["now_s"])
    check_batch(batch, "nvml", step["now_s"])
    seen, held = batch.telemetry, batch.inventory
    answers.append({
        "gaps": [[g.object_id, g.signal, g.reason] for g in batch.gaps],
        "mean": {} if seen is None else {
            e: [None if math.isnan(v) else round(float(v), 6) for v in seen.mean[:, -1, k]]
            for k, e in enumerate(seen.entity_ids)},
        "quality": {} if seen is None else dict(zip(seen.entity_ids, seen.quality.tolist())),
        "samples": {} if seen is None else dict(zip(seen.entity_ids, seen.samples[-1].tolist())),
        "gpus": [] if held is None else [
            [u, bool(h), bool(m)] for u, h, m in zip(held.gpus.uuid, held.gpus.healthy, held.gpus.mig)],
        "instances": [] if held is None else [
            [i, held.names.profiles[p], int(s), int(g)] for i, p, s, g in zip(
                held.instances.id, held.instances.profile, held.instances.start, held.instances.gi_id)],
        "models": [] if held is None else list(held.names.gpu_models),
        "seen": [[s.uuid, s.gi_id, s.profile, s.host] for s in collector.sightings().seen],
        "same": collector.sightings() is collector.sightings(),
        "errors": [] if batch.errors is None else [
            [e, int(x), int(r)] for e, x, r in zip(batch.errors.entity_ids, batch.errors.xid, batch.errors.remap)],
        "counted_w": collector.counted_w(step["now_s"]),
        "node": [] if held is None else [list(held.nodes.id), held.nodes.gpus.tolist()],
    })
collector.close()
print(json.dumps(answers))
"""

Watch = Callable[..., list[dict[str, Any]]]

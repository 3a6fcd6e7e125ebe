"""Alibaba GenTD26: requests to Stable Diffusion services, as published (CSV) or in our columns.

Image generation has no tokens. So that a replay has work of the right proportions, a prompt counts one input
token for four characters, and one denoising step of one image counts as one output token. Both are
reported as assumed; `latency_s` is the publisher's measurement.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulator.traces.importers.common import (
    Imported,
    ImportOptions,
    layout_error,
    read_layout,
    thin,
    timestamps_s,
)
from simulator.traces.table_files import Progress, number_column

CHARACTERS_PER_TOKEN = 4.0

OWN_COLUMNS = (
    ("prompt_length", "prompt_length"),
    ("images", "num_images_per_prompt"),
    ("steps", "num_inference_steps"),
    ("num_lora", "num_lora"),
)
"""Our name, the publisher's."""

PUBLISHED = (
    "gmt_create",
    "predict_type",
    "exec_time_seconds",
    "groupId",
    "checkpoint_model_version_id",
    "prompt_length",
    "num_images_per_prompt",
    "num_inference_steps",
)


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the requests; one without a base model is dropped and counted."""
    import pandas as pd

    progress("reading the requests", 0.0)
    frame = read_layout(path)
    if set(PUBLISHED) <= set(frame.columns):
        t_s = timestamps_s(frame, "gmt_create", path)
        requests = pd.DataFrame(
            {
                "t_s": t_s - (t_s.min() // 3600) * 3600,
                "service": frame["checkpoint_model_version_id"],
                "latency_s": number_column(frame, "exec_time_seconds", path),
                "tenant": frame["groupId"],
                "kind": frame["predict_type"],
                "status": frame["predict_status"].str.lower() if "predict_status" in frame else None,
            }
        )
        for ours, theirs in OWN_COLUMNS:
            if theirs in frame:
                requests[ours] = number_column(frame, theirs, path)
    elif {"t_s", "service", "exec_s", "prompt_length", "images", "steps"} <= set(frame.columns):
        requests = frame.rename(columns={"exec_s": "latency_s"})
    else:
        raise layout_error(path, "genai", (", ".join(PUBLISHED), "t_s, service, exec_s, ..."), frame)
    steps = [number_column(requests, name, path) for name in ("images", "steps")]
    requests["input_tokens"] = np.ceil(number_column(requests, "prompt_length", path) / CHARACTERS_PER_TOKEN)
    requests["output_tokens"] = np.ceil(steps[0] * steps[1])
    nameless = requests["service"].isna()
    notes: list[str] = []
    kept = thin(requests[~nameless], options, notes)
    dropped = {"no base model": int(nameless.sum())} if nameless.any() else {}
    assumed = {"input_tokens": len(kept), "output_tokens": len(kept)}
    return Imported(kept, len(frame), dropped, assumed, notes)

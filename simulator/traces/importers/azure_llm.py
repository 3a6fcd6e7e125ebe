"""Azure LLM inference traces (2023 and 2024): one row a request, as published (CSV) or in our columns."""

from __future__ import annotations

from pathlib import Path

from simulator.traces.importers.common import (
    Imported,
    ImportOptions,
    layout_error,
    read_layout,
    thin,
    timestamps_s,
)
from simulator.traces.table_files import Progress, number_column

PUBLISHED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the requests; the service is named after the file, since the trace names none."""
    import pandas as pd

    progress("reading the requests", 0.0)
    frame = read_layout(path)
    notes: list[str] = []
    if set(PUBLISHED) <= set(frame.columns):
        t_s = timestamps_s(frame, "TIMESTAMP", path)
        requests = pd.DataFrame(
            {
                "t_s": t_s - t_s.min(),
                "service": path.stem.replace("AzureLLMInferenceTrace_", "azure-"),
                "input_tokens": number_column(frame, "ContextTokens", path),
                "output_tokens": number_column(frame, "GeneratedTokens", path),
            }
        )
    elif {"t_s", "service", "input_tokens", "output_tokens"} <= set(frame.columns):
        requests = frame
    else:
        raise layout_error(
            path, "azure-llm", (", ".join(PUBLISHED), "t_s, service, input_tokens, output_tokens"), frame
        )
    return Imported(thin(requests, options, notes), len(frame), notes=notes)

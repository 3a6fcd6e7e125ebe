"""Mooncake (Kimi) traces of FAST'25: JSON lines as published, or our columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout, thin
from simulator.traces.table_files import Progress


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the requests; `prefix_hit_blocks` counts leading 512-token blocks seen earlier in the trace."""
    import pandas as pd

    progress("reading the requests", 0.0)
    if path.suffix.lower() in (".jsonl", ".json"):
        rows = list(_rows(path))
        if not rows:
            raise InputError(f"{path}: the file is empty")
        frame = pd.DataFrame(rows)
    else:
        frame = read_layout(path)
        if not {"t_s", "service", "input_tokens", "output_tokens"} <= set(frame.columns):
            raise layout_error(
                path, "mooncake", ("t_s, service, input_tokens, output_tokens (or a .jsonl file)",), frame
            )
    notes: list[str] = []
    return Imported(thin(frame, options, notes), len(frame), notes=notes)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    seen: set[Any] = set()
    service = "mooncake-" + path.stem.removesuffix("_trace")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _row(json.loads(line), service, seen)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{path}: line {number}: not a Mooncake request: {what}") from error


def _row(entry: dict[str, Any], service: str, seen: set[Any]) -> dict[str, Any]:
    blocks = entry["hash_ids"]
    hits = 0
    while hits < len(blocks) and blocks[hits] in seen:
        hits += 1
    seen.update(blocks)
    return {
        "t_s": float(entry["timestamp"]) / 1000.0,
        "service": service,
        "input_tokens": int(entry["input_length"]),
        "output_tokens": int(entry["output_length"]),
        "prefix_blocks": len(blocks),
        "prefix_hit_blocks": hits,
    }

"""Bodies that a recording describes in words because they are too large to keep."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.kube.replay.recording import Step

KIB = 1024
NAME = "described"


def described(text: str, step: Step) -> Any:
    """The body that a text describes; the text itself where it is the body (broken JSON, for example)."""
    name = _name(step)
    data = re.fullmatch(r"data\.(\w+) of (\d+) bytes", text)
    if data:
        return json.dumps(_config_map(name, data={data[1]: "x" * int(data[2])}))
    if re.fullmatch(r"annotation of 256 KiB", text):
        return json.dumps(_config_map(name, annotations={"a": "x" * 256 * KIB}))
    if re.match(r"body of about 3 MiB", text):
        return json.dumps(_config_map(name, data={"x": "x" * 3 * KIB * KIB}))
    if re.fullmatch(r"merge patch of 3 MiB", text):
        return json.dumps({"data": {"x": "x" * 3 * KIB * KIB}})
    annotation = re.fullmatch(r'merge patch: annotation "(\w+)" of (\d+) bytes', text)
    if annotation:
        return json.dumps({"metadata": {"annotations": {annotation[1]: "x" * int(annotation[2])}}})
    repeated = re.fullmatch(r"(\d+) times (\{.*\}) in a list", text)
    if repeated:
        return f"[{','.join([repeated[2]] * int(repeated[1]))}]"
    return text


def _name(step: Step) -> str:
    body = step.body if isinstance(step.body, dict) else {}
    return (body.get("details") or {}).get("name") or (body.get("metadata") or {}).get("name") or NAME


def _config_map(name: str, data: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Any:
    metadata: dict[str, Any] = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {}}

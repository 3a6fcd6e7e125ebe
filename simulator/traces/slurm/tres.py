"""TRES and GRES lists of Slurm: `billing=8,gres/gpu:a100=4,gres/gpu=4`, `gpu:a100:2(IDX:0-1)`, `gres/shard=2`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_INDEX = re.compile(r"\([^)]*\)")
_ITEM = re.compile(
    r"(?:gres[/:])?(?P<kind>gpu|shard|mps|mig)(?::(?P<type>[^=:]+(?::[^=:]+)*?))?(?:[=:](?P<count>\d+)[KMG]?)?"
)
_MIG_GRES = re.compile(r"(?:gres[/:])?(?P<type>[\w.-]*\d+g\.\d+gb[\w.+-]*)(?:[=:](?P<count>\d+))?")
_PROFILE = re.compile(r"(\d+c\.)?(\d+g\.\d+gb)((?:[+._-]me(?:\.all)?)?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a list: whole GPUs (MIG slices with `profile`), models as the site names them, and shards."""

    count: int = 0
    models: tuple[str, ...] = ()
    profile: str = ""
    shards: int = 0


def gpus_of(tres: str) -> Gpus:
    """The GPUs of a list. The plain `gres/gpu=4` counts, else the sum over the types; an item without a number is one.

    Slices of two profiles have both names, joined by a vertical bar.
    """
    plain: int | None = None
    typed, shards = 0, 0
    models: dict[str, None] = {}
    profiles: dict[str, None] = {}
    for text in _INDEX.sub("", tres).split(","):
        item = _ITEM.fullmatch(text.strip())
        kind = item["kind"] if item else "gpu"
        item = item or _MIG_GRES.fullmatch(text.strip())
        if item is None:
            continue
        count, name = int(item["count"] or 1), item["type"] or ""
        if name.isdigit() and item["count"] is None:
            count, name = int(name), ""
        if kind in ("shard", "mps"):
            shards += count
            continue
        if not name:
            plain = count
            continue
        if not count:
            continue
        typed += count
        model, profile = split_mig(name)
        profiles |= {profile: None} if profile else {}
        models |= {model: None} if model else {}
    return Gpus(typed if plain is None else plain, tuple(models), "|".join(profiles), shards)


def split_mig(name: str) -> tuple[str, str]:
    """Model and MIG profile of a type such as `a100_1g.10gb`; either may be empty."""
    found = _PROFILE.search(name)
    if found is None:
        return name, ""
    rest = re.sub(r"(?i)(^|[._:-])mig(?=$|[._:-])", r"\1", name[: found.start()] + name[found.end() :])
    return rest.strip("._:-+"), found[2].lower() + ("+me" if found[3] else "")

"""Kinds of work: what the repetitions of one piece of work share.

A key is a text, because memory and journal hold it. Names come from people and from generators, so nothing may grow
with the number of keys without a bound.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from autopilot.core.model.snapshot import ClusterSnapshot

BETWEEN = "\n"
"""Between the parts of a key: no name of Kubernetes or Slurm has it."""


@lru_cache(maxsize=65_536)
def name_stem(name: str) -> str:
    """The part of a job's name that its repetitions share: numbers and hexadecimal tails become `#`."""
    plain = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<![a-z])[0-9a-f]*\d[0-9a-f]{5,}", "#", name.strip().lower())
    return re.sub(r"\d+", "#", plain)


def kind_of(snapshot: ClusterSnapshot, row: int) -> str:
    """The kind of the work at `row`: its tenant and user, its name as run times know it, and its image.

    The replicas of a service are one kind, under the name of the service.
    """
    work, service = snapshot.workloads, int(snapshot.workloads.service[row])
    name = str(snapshot.services.id[service]) if service >= 0 else name_stem(str(work.name[row]))
    tenant = int(work.tenant[row])
    owner = f"{snapshot.names.tenants[tenant] if tenant >= 0 else ''}/{work.user[row]}"
    return BETWEEN.join(part.replace(BETWEEN, " ") for part in (owner, name, str(work.image[row])))


def without_image(kind: str) -> str:
    """The owner and the name of a kind: equal for all images of the same work."""
    return kind.rsplit(BETWEEN, 1)[0]


def owner_of_kind(kind: str) -> str:
    """The tenant and user of a kind, as `tenant/user`."""
    return kind.split(BETWEEN, 1)[0]


def gpu_models(snapshot: ClusterSnapshot) -> np.ndarray:
    """The name of the model of each GPU; "" for an unknown one. Shape [gpus]."""
    code = snapshot.nodes.gpu_model[snapshot.gpus.node]
    return np.array((*snapshot.names.gpu_models, ""), object)[code]

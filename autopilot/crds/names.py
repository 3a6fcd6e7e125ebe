"""Names of the custom resources, of their annotations, and of single objects."""

from __future__ import annotations

import re
from hashlib import sha256

from autopilot.settings import API_VERSION, KIND

GROUP, VERSION = API_VERSION.split("/")
POLICY_KIND, POLICIES = KIND, "autopilotpolicies"
RECOMMENDATION_KIND, RECOMMENDATIONS = "Recommendation", "recommendations"

LONGEST = 253
"""Most characters of a name (DNS subdomain)."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def object_name(proposal_id: str) -> str:
    """The name of the Recommendation of a proposal: its id, with `-` for the `/` between namespace and name.

    An id that makes no valid name so is made into one, and gets a hash so that two ids do not share a name.
    """
    name = proposal_id.replace("/", "-")
    if len(name) <= LONGEST and _NAME.fullmatch(name) and ".." not in name:
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{plain[: LONGEST - 9]}-{sha256(proposal_id.encode()).hexdigest()[:8]}"


def collection(plural: str) -> str:
    """Path of all objects of a kind."""
    return f"/apis/{API_VERSION}/{plural}"


def path(plural: str, name: str, subresource: str = "") -> str:
    """Path of one object."""
    return f"{collection(plural)}/{name}" + (f"/{subresource}" if subresource else "")

"""What a scrape of the metrics shows after one tick."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.metrics.exposition import Exposition
from tests.kits.core_world import AUTO, decide


def scrape(text: bytes) -> dict[str, float]:
    """Samples by `name{label="value",...}`, the prefix left out; labels as the parser reads them."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            name = sample.name.removeprefix("gpu_autopilot_")
            found[f"{name}{{{labels}}}" if labels else name] = sample.value
    return found


def shown(observation: Observation, step: Step | None = None, policy: Policy = AUTO) -> dict[str, float]:
    """What a scrape shows after one tick on `observation`."""
    done_step = step or decide(observation, policy)
    exposition = Exposition(None, "1")
    exposition.tick(observation, done_step.decision, done_step.memory, policy, {"whole": 0.2})
    return scrape(exposition.render(observation.now_s + 5.0))

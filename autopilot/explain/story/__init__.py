"""One workload's story: where it stands, what holds it, what would free it by forecast. `Watch`, then `tell`."""

from autopilot.explain.story.telling import Watch, tell, unlisted, width_words

__all__ = ["Watch", "tell", "unlisted", "width_words"]

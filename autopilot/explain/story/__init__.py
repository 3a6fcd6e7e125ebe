"""The story of one workload: its place, its obstacles, and their forecast ends. `Watch`, then `tell`."""

from autopilot.explain.story.telling import Watch, tell, unlisted, width_words

__all__ = ["Watch", "tell", "unlisted", "width_words"]

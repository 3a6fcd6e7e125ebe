"""Recovery: work that cannot go on in its place, nodes closed to new work, and work beyond its run time."""

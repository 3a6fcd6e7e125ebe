"""Recovery: work that cannot go on where it is, nodes that must take no more, and work that runs for too long."""

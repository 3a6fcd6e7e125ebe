"""The kinds that a server knows without custom resources (`table`), and what a kind is (`base`)."""

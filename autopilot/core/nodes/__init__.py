"""Nodes: requests for more of them for work without a fit, and offers of unneeded ones."""

"""Nodes: requests for more of them where work does not fit, and offers of those that nothing needs."""

"""Simulations: the world, the controller wired to it, its recorders, and its output files."""

"""Simulations: the world, the controller wired to it, what is recorded, and the files a run writes."""

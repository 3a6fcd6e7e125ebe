"""The composition root: the only package that imports every other one and wires them together."""

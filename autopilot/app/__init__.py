"""The composition root: the only folder that knows every other one, and puts them together."""

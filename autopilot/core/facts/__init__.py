"""Derived values that are declared once, and kept while their inputs are the same objects."""

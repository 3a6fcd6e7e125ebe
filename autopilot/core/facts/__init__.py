"""Derived values, declared once, and kept while their inputs are the same objects."""

"""Comparisons: policies x clusters x changes x seeds, each run kept, with medians, ranges and money."""

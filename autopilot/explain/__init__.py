"""Decisions, refusals and the story of a workload in words.

Explanations are made from recorded facts and from the functions that decide. Nothing here changes a decision.
"""

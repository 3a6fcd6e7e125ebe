"""Trust: promises against results, storms of reversed effects, and impossible measurements.

Unkept promises and repeated changes of an action limit its freedom to act without a person.
"""

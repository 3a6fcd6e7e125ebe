"""Trust: promises against results, storms of reversed effects, and measurements that cannot be true.

What an action promised and did not keep, or had to repeat, limits what it may do without a person.
"""

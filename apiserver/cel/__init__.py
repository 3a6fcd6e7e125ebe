"""Expressions in CEL as the API server evaluates them: in the schemas of custom resources and in admission policies."""

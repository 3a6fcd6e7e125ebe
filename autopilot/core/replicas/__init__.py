"""Replicas of services: their number before the load comes, and room for late or foreseen ones."""

"""Replicas of services: their number before the load comes, and room for those that are late or foreseen."""

"""Inference services: requests, queues, latency, replicas and their autoscaler."""

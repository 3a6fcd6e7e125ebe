"""Scheduling policies of other people: what they are, what they see, how they are registered, and what runs them."""

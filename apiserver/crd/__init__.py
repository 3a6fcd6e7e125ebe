"""Custom resources: definitions and their life, schemas, defaults, validation, and the added kinds."""

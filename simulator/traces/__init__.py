"""Input data: job files, request files, public traces, and defaults for missing values."""

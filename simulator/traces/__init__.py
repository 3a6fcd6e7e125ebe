"""The past comes in here: job files, request files, public traces, and what is assumed where they are silent."""

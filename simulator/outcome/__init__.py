"""Results of a run: documents, rows, and how single jobs fared."""

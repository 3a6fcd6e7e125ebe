"""Results of a run: documents, rows, and the outcomes of single jobs."""

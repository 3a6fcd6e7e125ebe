"""What a run found: results as documents and rows, and how single jobs fared."""

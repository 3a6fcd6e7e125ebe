"""Slurm accounting: what `sacct` and `squeue` print, as rows of jobs."""

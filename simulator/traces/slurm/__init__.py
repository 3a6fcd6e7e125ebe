"""Slurm accounting: the output of `sacct` and `squeue`, as rows of jobs."""

"""Analysis of a study: everything here reads its journal and nothing else."""

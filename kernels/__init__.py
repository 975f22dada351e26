"""Kernels in every implementation at hand, held against a reference and timed in turns."""

"""Kernels in every implementation at hand, checked against a reference and timed in turns."""

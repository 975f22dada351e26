"""All kernels, by name."""

from kernels import elementwise, model_pieces, monte_carlo, scalars, sums, transfers

FAMILIES = (scalars, elementwise, sums, monte_carlo, model_pieces, transfers)
KERNELS = {kernel.name: kernel for family in FAMILIES for kernel in family.KERNELS}

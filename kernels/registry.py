"""All kernels, by name."""

from kernels import elementwise, monte_carlo_pi, reductions, row_kernels, scalars, transfers

FAMILIES = (scalars, elementwise, reductions, monte_carlo_pi, row_kernels, transfers)
KERNELS = {kernel.name: kernel for family in FAMILIES for kernel in family.KERNELS}

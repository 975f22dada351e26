"""All kernels, by name."""

from kernels import elementwise, scalars, transfers
from kernels import monte_carlo_pi as monte_carlo
from kernels import reductions as sums
from kernels import row_kernels as model_pieces

FAMILIES = (scalars, elementwise, sums, monte_carlo, model_pieces, transfers)
KERNELS = {kernel.name: kernel for family in FAMILIES for kernel in family.KERNELS}

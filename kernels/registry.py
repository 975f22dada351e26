"""All kernels by name, and which of their implementations are asked for."""

from collections.abc import Sequence

from kernels import arrays, cuda, monte_carlo_pi, row_kernels
from kernels.kernel import Implementation, Kernel
from kernels.settings import Settings, check_known
from tune.errors import UserError
from tune.flags import invalid

FAMILIES = (arrays, monte_carlo_pi, row_kernels, cuda)
KERNELS = {kernel.name: kernel for family in FAMILIES for kernel in family.KERNELS}


def selected_implementations(kernel: Kernel, implementations: Sequence[str] | None) -> list[Implementation]:
    """Return the implementations of a kernel that are asked for; None: all."""
    return [each for each in kernel.implementations if implementations is None or each.name in implementations]


def check_implementations(settings: Settings) -> None:
    """Check the implementations that are asked for. UserError: none of the kernels has one of them."""
    known = dict.fromkeys(each.name for name in settings.kernels for each in KERNELS[name].implementations)
    try:
        check_known(settings.implementations or (), tuple(known))
    except UserError as error:
        raise invalid("implementations", str(error)) from None

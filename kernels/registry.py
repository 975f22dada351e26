"""All kernels, by name, and what is asked of each."""

from kernels import arrays, cuda, monte_carlo_pi, row_kernels, scalars
from kernels.kernel import Implementation
from kernels.settings import Settings, check_known
from tune.errors import UserError
from tune.flags import invalid

FAMILIES = (scalars, arrays, monte_carlo_pi, row_kernels, cuda)
KERNELS = {kernel.name: kernel for family in FAMILIES for kernel in family.KERNELS}


def asked(settings: Settings, name: str) -> list[Implementation]:
    """The implementations of a kernel that are asked for."""
    wanted = settings.implementations
    return [each for each in KERNELS[name].implementations if wanted is None or each.name in wanted]


def check_implementations(settings: Settings) -> None:
    """UserError: one is asked for that none of the kernels has."""
    known = dict.fromkeys(each.name for name in settings.kernels for each in KERNELS[name].implementations)
    try:
        check_known(settings.implementations or (), tuple(known))
    except UserError as error:
        raise invalid("implementations", str(error)) from None

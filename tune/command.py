"""The command `ration` of an installed wheel, which runs the scripts of a checkout by name. Nothing imports it."""

import runpy
import sys

from tune.cli import run_to_exit_code
from tune.errors import COMMANDS, INSTALLED, UserError

ABOUT = f"""usage: {INSTALLED} NAME FLAGS

{{names}}

`{INSTALLED} NAME --help` tells the flags of each."""


def main() -> int:
    """Run the named command. Return 0 for help, 2 for a wrong name. SystemExit: with the code of what ran."""
    return run_to_exit_code(_main)


def _main() -> int:
    """Run the named command. UserError: a name that is no command."""
    name, flags = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if name in ("-h", "--help"):
        print(ABOUT.format(names="\n".join(f"  {each:<12}{what}" for each, (_, what) in COMMANDS.items())))
        return 0
    if name not in COMMANDS:
        raise UserError(f"NAME: {name!r} is no command: write one of {', '.join(COMMANDS)}")
    sys.argv = [INSTALLED, *flags, *(["--plan"] if name == "plan" else [])]
    runpy.run_module(COMMANDS[name][0].removesuffix(".py").replace("/", "."), run_name="__main__")
    return 0

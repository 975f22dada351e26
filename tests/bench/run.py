"""Entry: `python tests/bench/run.py --data $DATA`, the figures of the models; `--only kernels,ray` of the kernels."""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.contenders import PAIRS, TEXT
from tests.bench.kernel_figures import figures, inside_ray
from tests.bench.long_text import text
from tests.bench.quality import (
    loss_at_equal_tokens,
    loss_of_core_minutes,
    loss_of_defaults,
    time_to_upstream_loss,
)
from tests.bench.scaling import ray_train_against_torchrun
from tests.bench.search_figures import intervals, slots, start
from tests.bench.speed import cohorts, decoding, estimates, gpt, translation
from tests.bench.table import keep, show
from tests.bench.translated import bleu

MEASURES = {
    "gpt": gpt, "translation": translation, "decoding": decoding, "loss": loss_at_equal_tokens,
    "time": time_to_upstream_loss, "estimates": estimates, "bleu": bleu,
    "core": loss_of_core_minutes, "defaults": loss_of_defaults, "scaling": ray_train_against_torchrun, "slots": slots,
    "intervals": intervals, "start": start, "text": text, "cohorts": cohorts,
}  # fmt: skip
OF_KERNELS = {"kernels": figures, "ray": inside_ray}
"""They read no text, and are measured by themselves: what trained before has set its process's threads."""


def main(arguments: list[str]) -> int:
    """Measure, print a table after each measure, keep the rows in a file. 1 where a kernel's floor was not reached."""
    parser = argparse.ArgumentParser(prog="python tests/bench/run.py", description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder with {PAIRS} and {TEXT}; {', '.join(OF_KERNELS)} read none")
    parser.add_argument("--only", default=",".join(MEASURES), help="measures, by comma (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="a minute of it, to see that it works")
    parser.add_argument("--json", type=Path, help="keep the rows here too")
    flags = parser.parse_args(arguments)
    names, missed = flags.only.split(","), False
    if flags.data is None and not OF_KERNELS.keys() >= set(names):
        parser.error("the following arguments are required: --data")
    for name in names:
        rows, kernels = [], OF_KERNELS.get(name)
        for row in kernels(short=flags.short) if kernels else MEASURES[name](flags.data, short=flags.short):
            rows.append(row)
            if flags.json:
                keep(row, flags.json)
        show(rows)
        missed = missed or (bool(kernels) and any(row.reached is False for row in rows))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

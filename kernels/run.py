"""Entry: `python kernels/run.py`, every kernel in every implementation as Ray tasks; `--local` without Ray."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from kernels.command import asked, in_process, report
from kernels.study import in_study
from kernels.tasks import in_tasks, prepare_environment

if __name__ == "__main__":
    settings = asked(sys.argv[1:])
    if settings.local:
        sys.exit(report(settings, in_process(settings)))
    prepare_environment()
    import ray

    if settings.budget is None:
        sys.exit(report(settings, in_tasks(ray, settings)))
    from tune.display import tensorboard
    from tune.store import journal, ledger

    sys.exit(report(settings, in_study(ray, settings, journal=journal, ledger=ledger, event_file=tensorboard)))

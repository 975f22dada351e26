"""The search. Ray reads some of its settings when it is imported, so they are set here, before anything imports it."""

import os
import sys
from pathlib import Path

RAY_SETTINGS = {
    # no tables, log files, signal handler or experiment state of Ray's own: a study has its own of each
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    # an experiment has a Ray of its own, none of whose nodes is preempted: no process need watch for that
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Tune would set this in the environment of trials, which is this one (tune/backend/session.py)
    "PL_DISABLE_FORK": "1",
    # Ray gives its workers niceness 15: a trial that pays by the second must not yield to whatever else runs
    "RAY_worker_niceness": "0",
}
for name, value in RAY_SETTINGS.items():
    os.environ.setdefault(name, value)
# Ray listens on all interfaces whatever address it is given: no setting from outside may open it to everyone
os.environ["RAY_AUTH_MODE"] = "token"

if Path(*sys.argv[:1]).name == "default_worker.py":  # a Ray worker: the search's working folder is first on its path
    ours = str(Path(__file__).resolve().parents[1])
    files = "model.py", "model/__init__.py"
    rivals = [each for each in sys.path if each != ours and any(os.path.isfile(Path(each, file)) for file in files)]
    sys.path[:] = [each for each in sys.path if each not in rivals] + rivals

"""What a worker of Ray's imports before it is given a GPU: all that trials need, which takes seconds and asks nothing
of CUDA; then a file with its number says that it is ready."""

import os
from pathlib import Path

import tune.backend.trainable  # noqa: F401
from tune.machine import READY

if READY in os.environ:
    Path(os.environ[READY], str(os.getpid())).touch()

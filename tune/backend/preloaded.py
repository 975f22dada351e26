"""Imported by Ray's workers before they are given a GPU: all that trials need, which takes seconds and asks nothing of
CUDA. Then a file named by the worker's process id says that it is ready."""

import os
from pathlib import Path

import tune.backend.trainable  # noqa: F401
from tune.machine import READY

if READY in os.environ:
    Path(os.environ[READY], str(os.getpid())).touch()

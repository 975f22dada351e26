"""Processes for tests, forked from one in which what a search needs is imported: real ones, that begin at once.

Names of test modules stand here too: a process imports the module of what it is to do.
"""

import multiprocessing

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        *("torch._dynamo", "torch._inductor.config", "pytest", "tests.model.ranks"),
        *("tune.study", "tests.tune.test_ends", "tests.tune.test_registry"),
        *("tests.tune.backend.test_sleep", "tests.tune.display.conftest"),
        "tests.model.training.test_training_memory",
        *("tests.tune.backend.test_worker_group", "tests.tune.experiments.test_killed_driver"),
    ]
)

"""Ray for one search: started for it alone, or a cluster that it joins; and a Tuner that runs what the engine
decides."""

import logging
import os
import secrets
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
import ray._private.node
import ray._private.utils
import ray.tune
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune.backend.scheduler import AdmittingSearcher, BudgetScheduler, SlotKeeper, TuneBridge
from tune.devices import Devices, cores_of_trial, device_properties, in_common
from tune.errors import ROOT, UserError
from tune.flags import invalid
from tune.load import Loop
from tune.machine import READY, private_folder
from tune.search.engine import Engine
from tune.search.resume import Newest
from tune.settings import Settings

log = logging.getLogger(__name__)

KERNELS_KEPT = "512"
"""Number of kernels that oneDNN and torch each keep where memory is limited; by default each keeps 1,024, of 1 MB or
more in bf16."""


def keep_fewer_kernels() -> None:
    """Limit the kernels that trials' processes keep if they start from now on, unless the user set another limit."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, KERNELS_KEPT)


def check_no_ray() -> None:
    """Check that this process has no Ray yet. UserError: it has one, which the end of a search would end."""
    if ray.is_initialized():
        rule = "this process has one already, and a search begins or joins its own"
        raise UserError(f"Ray: {rule}: call ray.shutdown() first")


@contextmanager
def local_ray(cpus: int, gpus: int | None, *, preload: bool = False) -> Iterator[None]:
    """Start a Ray of this process's own, whatever else may be up, with so many CPUs and GPUs (None: all that there
    are); at the exit end it and remove its files. preload: wait, for PRELOAD_SECONDS at most, until workers have
    imported what trials need, before they are given any.

    Clients without the token are refused. It is new for each process and in its environment only, unless one is set
    there. Ray lets everyone write in its folder, so that lies in a folder that only this user can enter. UserError:
    this process has one already.
    """
    check_no_ray()
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    read_environment()
    with private_folder() as folder:
        try:
            preloaded = preloading(folder / "ready", cpus if preload else 0)
            with sigterm_left_alone(), without_helpers(), timeout_as_user_error(), preloaded:
                ray.init(
                    address="local", num_cpus=cpus, num_gpus=gpus, include_dashboard=False, log_to_driver=False,
                    configure_logging=False, logging_level=logging.WARNING, _temp_dir=str(folder / "ray"),
                )  # fmt: skip
            with without_environment_of_tunes():
                yield
        finally:
            ray.shutdown()


@contextmanager
def timeout_as_user_error() -> Iterator[None]:
    """Report a start that timed out. UserError: Ray gave up on its own processes, for which it waits half a minute."""
    try:
        yield
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        remedy = "this machine is too busy, or out of memory; no trial began: try again later, with --resume"
        raise UserError(f"Ray: its processes did not start in time: {remedy}") from None


def read_environment() -> None:
    """Make Ray read its settings again: it did so when it was imported, maybe before tune/__init__.py made them."""
    ray._raylet.Config.initialize("")


@contextmanager
def sigterm_left_alone() -> Iterator[None]:
    """Keep SIGTERM for this process: Ray would install its own handler when it starts, in Python and once more in C++,
    and end this process by it. Ray's processes get a group of their own: `timeout` signals all of ours, and without
    Ray's no search ends in order."""
    try:
        with (
            patch.object(ray._private.utils, "set_sigterm_handler", lambda handler: None),
            patch.object(ray._private.services, "ConsolePopen", partial(subprocess.Popen, process_group=0)),
        ):
            yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


HELPERS = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's internal class Node that start helper processes; one that a later Ray does not have starts none."""


def without_helpers() -> AbstractContextManager[None]:
    """Keep Ray from starting an autoscaler, a log monitor and the server of a dashboard that is off, and from waiting
    for the last: half a second of a core each before the first trial, and some more in each minute after it."""
    nothing: dict[str, Any] = dict.fromkeys(HELPERS, lambda self, **how: None)
    return patch.multiple(ray._private.node.Node, create=True, **nothing)


ENVIRONMENT = ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE")
"""Attributes of a module of Tune's that name the environment variables of trials; where a later Tune has others, trials
begin later."""


def without_environment_of_tunes() -> AbstractContextManager[None]:
    """Keep Tune from giving trials an environment of their own. Ray starts workers in advance with this process's
    environment; Tune adds a variable or two, which none of these workers has, so that another would be started at the
    first lease's expense."""
    cache = sys.modules.get("ray.tune.execution.class_cache")
    found = {name: type(getattr(cache, name))() for name in ENVIRONMENT if hasattr(cache, name)}
    return patch.multiple(cache, **found) if found else nullcontext()


PRELOAD_SECONDS, LOOK_SECONDS = 15.0, 0.05
"""Seconds to wait for workers to import in advance (late ones do so on their first lease); and between two looks for
them."""


@contextmanager
def preloading(ready: Path, workers: int) -> Iterator[None]:
    """Have so many workers of a Ray that is started inside import `tune.backend.preloaded` at once; then wait until
    each has left a file in the folder `ready`, for PRELOAD_SECONDS at most. Importing torch takes seconds, in which no
    GPU is used."""
    if not workers:
        yield
        return
    ready.mkdir()
    variables = {"RAY_preload_python_modules": "tune.backend.preloaded", READY: str(ready)}
    if str(ROOT) not in site.getsitepackages():  # else it is found anyway, and would hide the standard library
        variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    ends = time.monotonic() + PRELOAD_SECONDS
    while (there := len(list(ready.iterdir()))) < workers and time.monotonic() < ends:
        time.sleep(LOOK_SECONDS)
    if there < workers:
        log.warning(
            "%d of %d workers are not ready after %.0f s: their first leases pay",
            workers - there,
            workers,
            PRELOAD_SECONDS,
        )


def run_trials(
    engine: Engine, trained: type[ray.tune.Trainable], needs: Mapping[str, float], newest: Newest, **given: Any
) -> None:
    """Let Ray Tune run trials until the engine has handed back every slot. trained: class of their processes, each of
    which is given `given` once; needs: resources of Ray's that each takes."""
    bridge, slots = TuneBridge(engine, newest), engine.slots.most
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(slots)
    # else it warns that trials wrote none of Tune's files
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    scheduler = BudgetScheduler(bridge)
    trainable = ray.tune.with_resources(ray.tune.with_parameters(trained, **given), dict(needs))
    with tempfile.TemporaryDirectory(prefix="ration-") as scratch:
        tuner = ray.tune.Tuner(
            trainable,
            tune_config=ray.tune.TuneConfig(
                search_alg=AdmittingSearcher(bridge), scheduler=scheduler, num_samples=-1, reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id, trial_name_creator=lambda trial: trial.trial_id,
            ),
            run_config=ray.tune.RunConfig(
                storage_path=scratch, name="tune", verbose=0, callbacks=[SlotKeeper(bridge, scheduler, slots)],
                progress_reporter=ray.tune.CLIReporter(),  # silent by `verbose`; a notebook's wipes what the cell shows
                failure_config=ray.tune.FailureConfig(max_failures=0),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except Exception:
            if bridge.failed is None:
                raise
            raise bridge.failed from None


CONNECT_SECONDS = 5.0
"""Seconds in which a cluster must accept a connection, else it is refused."""
ANSWER_SECONDS = 120.0
"""Seconds in which a cluster must answer, and each node of it, else it is refused: a process has to start there, and to
import torch, on a machine that may be busy."""
REACHED_SECONDS = 1.0
"""Seconds in which a node must accept a connection, else it counts as lost."""
MOST_ASKED = 128
"""Nodes that are connected to at the same time, so that those that keep silent are waited for together."""
SENT_PACKAGES = [str(ROOT / name) for name in ("tune", "model")]
"""Packages that are sent to the nodes."""


@contextmanager
def join_cluster(address: str) -> Iterator[None]:
    """Connect as a driver to the cluster at HOST:PORT, with this code on each node. UserError: it does not answer in
    time, this machine is none of its nodes, or Python or Ray are others here."""
    check_answers(address)
    read_environment()
    try:
        ray.init(
            address=address, runtime_env={"py_modules": SENT_PACKAGES}, log_to_driver=False, configure_logging=False,
            logging_level=logging.WARNING,
        )  # fmt: skip
    except (ConnectionError, RuntimeError) as error:
        remedy = "start the search on a node of that cluster, with its Python and Ray"
        raise invalid("address", f"{address!r}: {remedy} ({' '.join(str(error).split())})") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_answers(address: str) -> None:
    """Check that a cluster can be joined. UserError: no Ray answers at HOST:PORT, or not to our token or version."""
    host, _, port = address.rpartition(":")
    remedy = "name the HOST:PORT that `ray start --head` printed, with its RAY_AUTH_TOKEN, Python and Ray here too"
    if not host or not port.isdigit():
        raise invalid("address", f"{address!r} is no address: {remedy}")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        words = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
        subprocess.run(words, capture_output=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, OverflowError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error).encode()).decode(errors="replace")
        why = said.strip().rpartition("\n")[2]
        raise invalid("address", f"{address!r}: no Ray cluster answers there: {remedy} ({why})") from None


def cluster_devices(settings: Settings) -> Devices:
    """Return the GPUs of all nodes, or their CPUs where there are none. UserError: there are not as many as asked for,
    or none, no node has a trial's cores, or a node is silent."""
    kind = "cuda" if any(node["Resources"].get("GPU") for node in nodes()) else "cpu"
    there = [node for node in nodes() if node_slots(node, kind)]
    if not there:
        what = "a GPU with a CPU core beside it" if kind == "cuda" else "a GPU or a CPU core to give"
        rule = f"no node of that cluster has {what}: start one that has, or wait until it has joined"
        raise invalid("address", f"'{settings.address}': {rule}")
    properties = in_common(run_on_nodes(there, device_properties, kind).values())
    cores_each = cores_of_trial(settings, kind, len(slot_names(kind)))
    if not (slots := len(slot_names(kind, cores_each))):
        most = max(int(node["Resources"]["CPU"]) for node in there)
        raise invalid("cores_per_trial", f"'{cores_each}' is more than any node has: write at most {most}")
    count = settings.slots(cores_each * slots, kind)
    has = [node["Resources"] for node in there]
    cores = len(slot_names("cpu")) if kind == "cpu" else count * min(int(each["CPU"] // each["GPU"]) for each in has)
    return Devices(kind=kind, count=count, cores=cores, cores_each=cores_each, **properties)


def check_folder(folder: Path) -> None:
    """Check that all nodes may write where a study's folder is to be, and that this process sees what they do.
    UserError: one does not. Leaves nothing behind."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    (made := place / f".ration-{secrets.token_hex(8)}").mkdir()
    try:
        left = run_on_nodes(nodes(), leave_file, str(made))
        apart = [host for host, name in left.items() if name is None or not (made / name).exists()]
    finally:
        shutil.rmtree(made)
    if apart:
        rule = "a study's folder lies on a disk that all nodes mount under one name"
        raise invalid("out", f"'{folder}' cannot be written from {', '.join(apart)}: {rule}; name such a place")


def leave_file(folder: str) -> str | None:
    """Write a file into a folder and return its name, which no other has; None: it cannot be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(b"\n")
            return os.path.basename(file.name)
    except OSError:
        return None


def check_loop_on_nodes(loop: Loop) -> None:
    """Check that each node has the loop's file as it is here, or the folder that its process starts in. UserError: one
    does not."""
    place = str(loop.file or loop.folder)
    here = seen(place)
    if apart := [host for host, there in run_on_nodes(nodes(), seen, place).items() if there != here]:
        rule = "each node reads its own: copy it there, with all that the loop imports"
        raise invalid("train", f"'{place}' is missing or differs on {', '.join(apart)}: {rule}")


def seen(path: str) -> bytes | bool:
    """Return a file's bytes, True for a folder, False for what cannot be read."""
    try:
        return Path(path).is_dir() or Path(path).read_bytes()
    except OSError:
        return False


def nodes() -> list[dict[str, Any]]:
    """Return the nodes that live and can be reached: Ray notices that one is lost only after several health checks."""
    living = [node for node in ray.nodes() if node["Alive"]]
    with ThreadPoolExecutor(MOST_ASKED) as pool:
        return [node for node, reached in zip(living, pool.map(is_reachable, living), strict=True) if reached]


def is_reachable(node: dict[str, Any]) -> bool:
    """Return whether a node's Ray still listens."""
    try:
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(place, timeout=REACHED_SECONDS).close()
        return True
    except OSError:
        return False


def slot_names(kind: str, cores_each: int = 1, trials_each: int = 1) -> frozenset[str]:
    """Return a name for each trial that all living nodes have room for at once, on so many cores, or so many on each
    GPU. A node that joins has other names than one that is lost."""
    slots = {node["NodeID"]: node_slots(node, kind, cores_each, trials_each) for node in nodes()}
    return frozenset(f"{node} {slot}" for node, count in slots.items() for slot in range(count))


def node_slots(node: dict[str, Any], kind: str, cores_each: int = 1, trials_each: int = 1) -> int:
    """Return how many trials Ray can place on a node at once: each takes its cores, on a GPU too."""
    cores, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
    return min(cores // cores_each, gpus * trials_each if kind == "cuda" else cores)


def run_on_nodes(there: list[dict[str, Any]], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return what a function returns on each of these nodes, by the node's name and address. It waits for no device, as
    other jobs may hold all of a node's; but it sees its GPUs. UserError: one is silent."""
    remote = ray.remote(num_cpus=0)(function)
    pinned = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in there]
    asked = [remote.options(scheduling_strategy=each).remote(*arguments) for each in pinned]
    names = ["{NodeManagerHostname} ({NodeManagerAddress}:{NodeManagerPort})".format(**node) for node in there]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS)
    if silent := [name for name, each in zip(names, asked, strict=True) if each not in answered]:
        remedy = "repair the node, or take it out of the cluster"
        raise invalid("address", f"{silent[0]} gave no answer within {ANSWER_SECONDS:.0f} s: {remedy}")
    try:
        return dict(zip(names, ray.get(asked), strict=True))
    except RayTaskError as error:
        if not isinstance(error.cause, UserError):
            raise
        raise invalid("address", f"on a node, {error.cause}") from None

"""The Hugging Face hub: whether it answers, and the splits of a dataset, from it or from its cache on this machine."""

import logging
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import huggingface_hub
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from tune.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HUB = "hub:"
EXPORT = "refs/convert/parquet"
"""The branch where the hub keeps a dataset as parquet; of one that is made by a script, all that `datasets` 5 reads."""
OUR_SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "test": "test"}
PATIENCE_SECONDS = 10.0
"""How long to wait for an answer about a dataset that was asked for by name."""
LONGEST_REASON = 200
NOT_THERE = (RepositoryNotFoundError, HFValidationError)

_FORM = re.compile(r"hub:([\w.-]+/[\w.-]+)(?::([^:#]+))?(?:#([^#]+))?")


@dataclass(frozen=True, kw_only=True)
class HubName:
    """A dataset as a user names it, `hub:ID[:CONFIG][#FIELD,...]`, under the flag that it was typed for."""

    flag: str
    text: str
    repository: str
    config: str | None
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """UserError: it is not of that form."""
        found = _FORM.fullmatch(text)
        if found is None:
            form = "write hub:ID[:CONFIG][#FIELD,...], such as hub:Helsinki-NLP/opus-100:en-es"
            raise UserError(f"{flag}: {text!r} names no dataset of the hub: {form}")
        fields = tuple(field.strip() for field in found[3].split(",")) if found[3] else ()
        return cls(flag=flag, text=text, repository=found[1], config=found[2], fields=fields)

    def refused(self, sentence: str) -> UserError:
        """The error that says what is wrong with this dataset, and what to do."""
        return UserError(f"{self.flag}: {self.text!r} {sentence}")


def ask(repositories: Iterable[str], seconds: float) -> dict[str, Any]:
    """What the hub says of each dataset: a huggingface_hub.DatasetInfo, or the exception that came in its place.

    All are asked at once and waited for so long, never longer, even where the name server of this machine hangs.
    """
    answers: dict[str, Any] = {}

    def ask_for(repository: str) -> None:
        try:
            answers[repository] = HfApi().dataset_info(repository, timeout=seconds)
        except Exception as error:
            answers[repository] = error

    threads = {name: threading.Thread(target=ask_for, args=(name,), daemon=True) for name in repositories}
    end = time.monotonic() + seconds
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    late = TimeoutError(f"no answer within {seconds:g} s")
    return {name: answers.get(name, late) for name in threads}


def unreachable(answer: Any) -> bool:
    """Whether `ask` had no answer: no network, a hub that is down, or one that may not be asked."""
    return isinstance(answer, Exception) and not isinstance(answer, NOT_THERE)


def open_splits(name: HubName, answer: Any) -> dict[str, "Dataset"]:
    """The splits of a dataset, as train, valid and test, memory-mapped; `answer` is what `ask` said of it.

    UserError: there is no such dataset or configuration, it cannot be had, or it has nothing to train on.
    """
    if isinstance(answer, NOT_THERE):
        raise name.refused("is not on the hub, or not for you: correct the name, or log in with: hf auth login")
    if unreachable(answer):
        found = cached(name)
        if found is None:
            rule = f"cannot be had: the hub cannot be reached ({reason(answer)}) and nothing of it is cached"
            raise name.refused(f"{rule}: try again later, or name a file")
    else:
        found = _load(name, answer)
    if "train" not in found:
        raise name.refused(f"has no split 'train', only {', '.join(found)}: name another dataset or configuration")
    return {ours: found[theirs] for theirs, ours in OUR_SPLITS.items() if theirs in found}


def cached(name: HubName) -> "DatasetDict | None":
    """What this machine keeps of a dataset since it was last loaded; None: nothing."""
    folder = os.environ.get("HF_DATASETS_CACHE") or Path(huggingface_hub.constants.HF_HOME, "datasets")
    if not Path(folder).is_dir():
        return None  # without the second or more that importing `datasets` takes
    from datasets.packaged_modules.cache.cache import Cache

    _hush()
    with suppress(UserError, OSError):
        builder = Cache(
            dataset_name=name.repository.partition("/")[2], repo_id=name.repository, config_name=name.config,
            version="auto", hash="auto",
        )  # fmt: skip
        found: Any = builder.as_dataset()
        return found
    return None


def reason(error: Exception) -> str:
    """What a library raised, on one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_REASON)


def _load(name: HubName, info: Any) -> "DatasetDict":
    """Download what is not cached yet, at the commit that the hub told of."""
    import datasets

    _hush()
    with _told(name):
        where = _place(name, info)
        configs = _configs(name, where)
    if name.config not in configs:
        rule = f"has no configuration {name.config!r}" if name.config else "has several configurations"
        few = textwrap.shorten(", ".join(filter(None, configs)), LONGEST_REASON)
        raise name.refused(f"{rule}: write hub:{name.repository}:CONFIG with one of {few}")
    with _told(name):
        loaded: Any = datasets.load_dataset(**where)
    return loaded


def _place(name: HubName, info: Any) -> dict[str, Any]:
    """What `load_dataset` wants to know of a dataset; of one that is made by a script, of its export."""
    path = f"hf://datasets/{name.repository}"
    if not any(file.rfilename == f"{name.repository.partition('/')[2]}.py" for file in info.siblings or ()):
        return {"path": path, "name": name.config, "revision": info.sha}
    export = HfApi().dataset_info(name.repository, revision=EXPORT, timeout=PATIENCE_SECONDS)
    return {"path": path, "data_dir": name.config, "revision": export.sha}


def _configs(name: HubName, where: Mapping[str, Any]) -> list[str | None]:
    """The configurations there are; None among them where the dataset needs none to be named."""
    import datasets

    place = {"path": where["path"], "revision": where["revision"]}
    if "data_dir" in where:
        tree = HfApi().list_repo_tree(name.repository, repo_type="dataset", revision=where["revision"])
        folders = [entry.path for entry in tree if isinstance(entry, huggingface_hub.hf_api.RepoFolder)]
        return [*folders, *([None] if len(folders) == 1 else [])]
    names = datasets.get_dataset_config_names(**place)
    needless = name.config is None and datasets.get_dataset_default_config_name(**place) is not None
    return [*names, *([None] if needless else [])]


@contextmanager
def _told(name: HubName) -> Iterator[None]:
    """Whatever the libraries between us and the hub raise, as one line."""
    try:
        yield
    except Exception as error:
        raise name.refused(f"cannot be loaded ({reason(error)}): correct it, try again, or name a file") from error


def _hush() -> None:
    """Keep the libraries' warnings off the screen, and their progress bars where there is no terminal."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()

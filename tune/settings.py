"""The settings of a study: the checks of them, alone and together, how study.json keeps them, and how a study is
resumed; standard library only.
"""

import errno
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Self, get_args

from tune.errors import UserError, check_not_hidden, script_command
from tune.flags import (
    AUTO,
    families_text,
    flag_name,
    flag_of,
    flag_words,
    invalid,
    is_switch,
    parse_path,
    parse_setting,
    under_flag,
    words_of,
)
from tune.load import check_function, check_loop, load_families
from tune.own_space import LONGEST_WORD, LOOP, OwnSpace, apply_range, make_space
from tune.recipe import parse_set
from tune.search_flags import FAMILY_ONLY_SETTINGS, LOOP_ONLY_SETTINGS, SearchFlags, train_text
from tune.search_space import (
    FAMILIES,
    LARGEST_SEED,
    PRECISIONS,
    SPACES,
    VARIABLE_RECIPE_FIELDS,
    Dimension,
    Space,
    check_range,
    fix_text,
)
from tune.store.journal import spent_at_its_end, study_facts
from tune.store.mirror import is_copy, restore_from_mirror
from tune.units import DURATIONS, MEMORY_FORMS, NUMBER, bytes_text, duration_text, parse_duration

NO_METRIC = ("step", "save")
EXECUTED = ("load", "train")
"""Settings that are never taken from a file: a file to execute must be typed."""


def free_folder() -> Path:
    """Return `runs/<UTC time>` in the present folder, under a name that is still free."""
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    taken = (Path("runs", name if not again else f"{name}-{again}") for again in range(1000))
    with under_flag("out"):
        return parse_path(str(next(folder for folder in taken if not os.path.lexists(folder))))


def needs_parsing(setting: Field[Any], value: object) -> bool:
    """Whether a value from Python must be parsed: it is as it is typed or as a file has it, or a number of the wrong
    kind, such as a fraction of what is counted, which parsing refuses."""
    of_families = setting.name == "families"
    if isinstance(value, Mapping):
        if of_families:  # shares are at most 1 in Python, per cent as typed
            return any(type(share) not in (int, float) or not 0 < share <= 1 for share in value.values())
        return flag_of(setting).repeats and not all(isinstance(each, Dimension) for each in value.values())
    if isinstance(value, bool):
        return not is_switch(setting)
    if isinstance(value, int | float):
        kinds = (setting.type, *get_args(setting.type))
        fits = float in kinds or (int in kinds and isinstance(value, int))
        return of_families or not (fits or setting.name == "train")  # of that it is said what it should be
    if isinstance(value, tuple) and setting.default == ():
        return any(not isinstance(each, Mapping) for each in value)
    return isinstance(value, str | Path | list | tuple)


class WithoutLoop(UserError):
    """The loop of a study of a training loop was not named again with --train."""


class UnknownFamily(UserError):
    """A family is neither built in nor registered."""

    def __init__(self, name: str) -> None:
        rule = f"write {' or '.join(SPACES)}, or several; one of your own comes with --load FILE"
        super().__init__(f"--families: {name!r} is no family: {rule}")
        self.name = name


@dataclass(frozen=True, kw_only=True)
class Settings(SearchFlags):
    """The settings of a study. Each may be given as its flag is typed, such as Settings(budget="2h"), and a length of
    time as a number of seconds.

    UserError: `--flag: value: rule: remedy`, in one line.
    """

    def __post_init__(self) -> None:
        if self.load is not None:  # other settings may name what it registers
            load_families(parse_setting(self.__dataclass_fields__["load"], str(self.load)))
        if self.train is not None and self.fix:  # before --fix is parsed, with the families' names
            words = (self.fix if isinstance(self.fix, str) else fix_text(self.fix)).split(",")
            remedy = f"write {' '.join(f'--range {word.strip()}' for word in words)}"
            raise invalid("fix", f"'{','.join(words)}' is not for --train: {remedy}")
        untyped = dict.fromkeys(FAMILIES, 1 / len(FAMILIES))
        for each in sorted(fields(self), key=lambda each: each.name != "families"):  # others name their dimensions
            value = getattr(self, each.name)
            if hasattr(value, "item"):  # a number of NumPy's
                object.__setattr__(self, each.name, value := value.item())
            if is_switch(each) and not isinstance(value, bool):
                raise invalid(each.name, f"{value!r:.60} is neither on nor off: write True or False")
            if each.name == "space" and isinstance(value, Mapping) and value:
                with under_flag("space"):
                    object.__setattr__(self, each.name, make_space(value))
            elif needs_parsing(each, value):
                object.__setattr__(self, each.name, parse_setting(each, words_of(each, value)))
            elif each.name == "families" and self.train is not None and value == untyped:
                object.__setattr__(self, each.name, {LOOP: 1.0})
            if each.name == "families" and self.train is None:
                for unknown in (name for name in self.families if name not in SPACES and name != LOOP):
                    raise UnknownFamily(unknown)
        for name in ("budget", "deadline", "report_every"):
            seconds = getattr(self, name)
            if seconds is None and name != "budget":
                continue
            if seconds is None or not math.isfinite(seconds):
                raise invalid(name, f"'{seconds}' is not a length of time: write {DURATIONS}")
            if seconds > 0:  # to the millisecond, as it is stored: a resumed study has the very same cap
                with under_flag(name):
                    object.__setattr__(self, name, seconds := parse_duration(duration_text(seconds)))
            if seconds <= 0:
                raise invalid(name, f"{duration_text(seconds)!r} is not above zero: write {DURATIONS}")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise invalid("memory_limit", f"'{bytes_text(self.memory_limit)}' is not above zero: write {MEMORY_FORMS}")
        # checked from Python too as when typed, and the same, to the last digit, as what is stored
        for name in ("families", "fix", "set", "stop_below_gain", "price_per_hour"):
            if (value := getattr(self, name)) not in (None, {}):
                each = self.__dataclass_fields__[name]
                object.__setattr__(self, name, parse_setting(each, flag_of(each).format(value)))
        self._check_own()
        shares = families_text(self.families)
        if not all(0 < share <= 1 for share in self.families.values()):
            raise invalid("families", f"{shares!r}: a share is above 0 and at most 100; leave a family out for none")
        if not math.isclose(sum(self.families.values()), 1):
            raise invalid("families", f"{shares!r} does not add up: make the shares, in per cent, add up to 100")
        if self.train is None:
            self._check_ranges()
            for family in self.families:
                self.space_of(family, PRECISIONS)
        for family, name in product(self.families, self.set):
            if name in SPACES.get(family, ()):
                raise invalid("set", f"'{name}' is in the space of {family}: --fix it, or leave it out")
        odd = [name for name in self.vary if name in ("batch_tokens", "context") and self.rungs == "tokens"]
        if odd:
            raise invalid("vary", f"'{odd[0]}' makes steps of unequal tokens: leave it out, or --rungs tokens")
        if "context" in self.vary and (others := [name for name in self.families if name != "nanogpt"]):
            why = "has rows of sentences" if others[0] in FAMILIES else "makes its own batches"
            rule = f"varies in nanogpt alone, and {others[0]} {why}"
            raise invalid("vary", f"'context' {rule}: leave it out, or write --families nanogpt")
        if unequal := [
            name for name in self.families if "batch_tokens" in SPACES.get(name, ()) and self.rungs == "tokens"
        ]:
            rule = f"{unequal[0]!r} has batch_tokens in its space, which makes steps of unequal tokens"
            raise invalid("rungs", f"'tokens': {rule}: leave one of the two out")
        if self.devices is not None and self.devices < 1:
            raise invalid("devices", f"'{self.devices}' is too few: a search needs at least 1; leave it out for all")
        if isinstance(self.trials_per_gpu, int) and self.trials_per_gpu < 1:
            raise invalid("trials_per_gpu", f"'{self.trials_per_gpu}' is too few: write 1 or more, or auto")
        if self.cores_per_trial < 1:
            raise invalid("cores_per_trial", f"'{self.cores_per_trial}' is too few: write 1 or more")
        if self.confirm < 0 or self.confirm == 1:
            raise invalid("confirm", f"'{self.confirm}' is too few: two seeds or more tell how they differ; write 2")
        if self.objective == "front" and (self.confirm or self.stop_below_gain):
            other = "--confirm" if self.confirm else "--stop-below-gain"
            raise invalid("objective", f"'front' has no one leader, whom {other} is about: leave one of the two out")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise invalid("seed", f"'{self.seed}' is out of range: a seed is from 0 to {LARGEST_SEED}; write --seed 0")
        super().__post_init__()

    def space_of(self, family: str, precisions: tuple[str, ...]) -> Space:
        """Return the space of a family on a device with these precisions. UserError: it has no configuration."""
        own = {
            name: each for name, each in {**self.space, **self.range}.items() if name in (*SPACES[family], *self.vary)
        }
        return Space(family=family, precisions=precisions, fix=self.fix, ranges=own)

    def _check_ranges(self) -> None:
        """Check --space, --range and --first. UserError: they name an unknown or fixed dimension, or values that it
        cannot have."""
        known = {*self.vary, *(name for family in self.families for name in SPACES[family])}
        for flag, given in {"space": self.space, "range": self.range}.items():
            for name in given:
                if name not in known:
                    more = (
                        f"add --vary {name}"
                        if name in VARIABLE_RECIPE_FIELDS
                        else f"there are {', '.join(sorted(known))}"
                    )
                    raise invalid(flag, f"{name!r} is no dimension of {' or '.join(self.families)}: {more}")
                if name in self.fix:
                    raise invalid(flag, f"{name!r} is fixed too, by --fix: keep one of the two")
            for family, (name, each) in product(self.families, given.items()):
                with under_flag(flag):
                    check_range(family, name, each)
                    for value in (each.values or (each.low, each.high)) if name in VARIABLE_RECIPE_FIELDS else ():
                        parse_set(f"{name}={value}")
        if odd := [name for config in self.first for name in config if name not in known]:
            raise invalid("first", f"{odd[0]!r} is no dimension: there are {', '.join(sorted(known))}")

    def _check_own(self) -> None:
        """Check the settings of a user's own training loop, and set its family, space and range. UserError: a loop
        lacks something, or a setting of loops is given for families, or one of families for a loop."""
        if self.train is None:
            if LOOP in self.families:
                raise WithoutLoop("--train: missing: a training loop of yours is named by it; write --train FILE")
            if alone := [name for name in LOOP_ONLY_SETTINGS if getattr(self, name) not in (None, {})]:
                raise invalid(alone[0], "works only with --train FILE")
            return
        for setting in fields(self):
            if setting.name in FAMILY_ONLY_SETTINGS and getattr(self, setting.name) not in (setting.default, {}, ()):
                raise invalid(setting.name, "is not for --train: leave it out")
        if set(self.families) != {LOOP}:
            raise invalid("families", f"{families_text(self.families)!r}: --train is in their place: leave one out")
        if isinstance(self.train, str):
            check_loop(self.train)
        else:
            check_function(self.train)
        if self.trials_per_gpu == AUTO:
            raise invalid(
                "trials_per_gpu", f"{AUTO!r}: what a loop of yours takes of a GPU is not known: write a number"
            )
        if not self.space:
            raise invalid("space", "missing: --train needs what varies; write --space space.toml")
        if unknown := [name for name in self.range if name not in self.space]:
            raise invalid("range", f"{unknown[0]!r} is no dimension of --space: there are {', '.join(self.space)}")
        narrowed = dict(self.range)
        for name, each in self.range.items():
            with under_flag("range", f"{name!r} "):
                narrowed[name] = apply_range(self.space[name], each)
        object.__setattr__(self, "range", narrowed)
        whole = self.own_space
        with under_flag("first"):
            for config in self.first:
                whole.nearest(config)
        names = [name for name in (self.metric, self.maximize) if name is not None]
        if len(names) != 1:
            what = "missing: say what --train reports; write --metric loss, or --maximize accuracy"
            both = f"{self.metric!r} is to be small and {self.maximize!r}, by --maximize, large: leave one out"
            raise invalid("metric", both if names else what)
        if not names[0].strip() or not names[0].isprintable() or len(names[0]) > LONGEST_WORD or names[0] in NO_METRIC:
            flag = "metric" if self.metric is not None else "maximize"
            raise invalid(flag, f"{names[0]!r:.60} is no name of a metric: write one such as loss")
        if names[0] in self.space:
            raise invalid("metric", f"{names[0]!r} is a dimension of --space too: name one of them otherwise")
        if self.life is not None and self.life < 1:
            raise invalid("life", f"'{self.life}' is too few: write the steps of a whole training, 1 or more")

    @property
    def own_space(self) -> OwnSpace:
        """Return the space of a user's own loop, without dimensions that exist only beside values that --range leaves
        out. UserError: --range gives a range of numbers to a dimension on which others depend."""
        given: dict[str, Dimension] = {}
        for name, each in self.space.items():
            when = {
                other: tuple(value for value in values if other in given and given[other].contains(value))
                for other, values in each.when.items()
            }
            if all(when.values()):
                given[name] = replace(self.range.get(name, each), when=when)
        with under_flag("range"):
            return OwnSpace(given=make_space(given))

    @classmethod
    def from_flags(cls, typed: Mapping[str, Any], experiment: str | None = None) -> Self:
        """Make settings of what was typed, for a new study or one to resume. experiment: the one that it is a study of;
        None: a search. UserError: a setting is wrong, or missing."""
        if "config" in typed:
            given = dict(typed)
            with under_flag("config"):
                path = parse_path(given.pop("config"))
            typed = cls.read_config(path, given) | given
        if "resume" in typed:
            changes = {name: text for name, text in typed.items() if name != "resume"}
            settings = cls.of_study(typed["resume"], experiment=experiment, **changes)
        elif "budget" in typed:
            settings = cls(**typed)
            settings.new_folder()
        else:
            raise invalid("budget", "missing: a study needs a cap; write --budget 8h")
        settings.check_files()
        return settings

    def new_folder(self) -> Path:
        """Return the folder a new study would have, and make nothing. UserError: it is taken, or cannot be made."""
        folder = self.out or free_folder()
        try:
            taken = folder.exists() or folder.is_symlink()
            if not taken:
                above = next(each for each in folder.parents if os.path.lexists(each))  # also a dangling link
                tempfile.TemporaryFile(dir=above).close()
        except OSError as error:
            raise invalid("out", f"'{folder}' cannot be made ({error.strerror}): name another place") from None
        if taken and self.out is not None:
            raise invalid("out", f"'{folder}' exists already: a study makes its folder; name another, or --resume it")
        return folder

    def check_files(self) -> None:
        """Check the files that are named, before anything slow is loaded. UserError: one cannot be read, the mirror
        cannot be written, workers would import another `tune`, or this is not Linux."""
        if sys.platform != "linux":
            rule = "a search needs Linux: run it there, or in WSL2; analysis/ reads a study here too"
            raise UserError(f"this system: {sys.platform!r}: {rule}")
        check_not_hidden("tune", "")  # Ray has the working folder first on its workers' path
        if self.mirror is not None:
            try:
                tempfile.TemporaryFile(dir=self.mirror).close()
            except OSError as error:
                remedy = "make that folder, or mount its disk"
                raise invalid("mirror", f"'{self.mirror}' cannot be written ({error.strerror}): {remedy}") from None
            own, mirror = (self.resume or self.out or free_folder()).resolve(), self.mirror.resolve()
            if mirror.is_relative_to(own) or (self.resume is None and mirror == own.parent):
                raise invalid("mirror", f"'{self.mirror}' is where the study itself lies: name another folder")
            if self.resume is None and self.out is not None and (copy := self.mirror / self.out.name).exists():
                raise invalid("mirror", f"'{copy}' exists already: name another folder, or --out another name")
        for name in ("translation_corpus", "text_corpus", "own_corpus"):
            if isinstance(path := getattr(self, name), Path):
                try:
                    if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe may block for ever
                        raise OSError(errno.EINVAL, "it is neither file nor folder")
                    path.open("rb").close()
                except OSError as error:
                    raise invalid(name, f"'{path}' cannot be read ({error.strerror}): name a file") from None

    def check_planned_here(self) -> None:
        """Check that a plan is of this machine. UserError: it is of a cluster."""
        if self.address is not None:
            remedy = "leave --address out; --devices N --oversubscribe plans for N devices like this machine's"
            raise invalid("plan", f"looks at this machine, not at the cluster at {self.address!r}: {remedy}")

    @property
    def terms(self) -> dict[str, float | None]:
        """Return the terms under which a study comes to its own end."""
        return {"cap": self.budget, "deadline": self.deadline, "stop_below_gain": self.stop_below_gain}

    def nothing_to_do(self) -> str | None:
        """Return a line that says so where the study to resume came to its own end under these terms, and its --mirror
        copy is whole; else None."""
        if self.resume is None or self.plan:
            return None
        spent, copy = spent_at_its_end(self.resume, self.terms), self.mirror and self.mirror / self.resume.name
        if spent is None or (copy and (is_copy(copy) or spent_at_its_end(copy, self.terms) is None)):
            return None
        used, cap = duration_text(round(spent, 1)), duration_text(self.budget)
        ways = {"budget": "a larger", "deadline": "a later", "stop_below_gain": "a smaller"}
        more = " or ".join(f"{how} {flag_name(name)}" for name, how in ways.items() if getattr(self, name))
        rank = f"{script_command('analysis/rank.py')} {shlex.quote(str(self.resume))} ranks what was found"
        return f"{self.resume}: it is over: spent {used} of {cap}; {more} goes on, and {rank}"

    def make_folder(self) -> Path:
        """Make the folder of a new study, which no other search has, even one begun in the same moment, and return it.
        UserError: as of new_folder."""
        while True:
            with suppress(FileExistsError):
                (folder := self.new_folder()).mkdir(parents=True)
                return folder

    def slots(self, available: int, kind: str) -> int:
        """Return how many devices to use where so many of a kind are available. UserError: more are asked for without
        --oversubscribe, or more GPUs than a plan is of: no two processes of Ray's can have a whole GPU each of one; or
        more than a cluster has, whose nodes have said what they give."""
        wanted = available if self.devices is None else self.devices
        planned = self.address is None and (kind == "cpu" or self.plan)
        if wanted > available and not (planned and self.oversubscribe):
            remedy = f"ask for at most {available}{', or add --oversubscribe' if planned else ''}"
            raise invalid("devices", f"'{wanted}' is more than the {available} there are: {remedy}")
        return wanted

    def spent_cap_error(self, spent: float) -> UserError:
        """Return the error for a cap that is less than the device-seconds that the study has already spent."""
        asked, used = duration_text(self.budget), duration_text(math.ceil(spent))
        return invalid("budget", f"{asked!r} is less than the {used} that the study spent: give a new total above that")

    def stored(self) -> dict[str, str | bool]:
        """Return what study.json keeps: each setting as a user types it; those not set are left out."""
        return {
            each.name: value if isinstance(value, bool) else flag_of(each).format(value)
            for each in fields(self)
            if flag_of(each).stored and (value := getattr(self, each.name)) not in (None, {}, ())
        }

    @classmethod
    def from_stored(cls, stored: object, **others: Any) -> Self:
        """Return the inverse of stored(), but for `load` and `train`, as what is executed must be named anew.

        UserError: stored() did not write that; anyone may have edited it.
        """
        known = {each.name: each for each in fields(cls) if flag_of(each).stored}
        if not isinstance(stored, dict) or not {"budget"} <= set(stored) <= set(known):
            raise UserError("its settings are not those of a study")
        if not all(isinstance(value, bool if is_switch(known[name]) else str) for name, value in stored.items()):
            raise UserError("a setting is of the wrong type")
        return cls(**{name: value for name, value in stored.items() if name not in EXECUTED}, **others)

    @property
    def entry(self) -> str:
        """The command whose settings these are, as it is typed."""
        return script_command("tune/run.py")

    def resume_command(self, study: Path, **changes: str) -> str:
        """Return what to type to resume a study of these settings, or what to call where its loop or families came from
        Python; changes: to these, as they are typed."""
        again = {name: getattr(self, name) for name in ("train", "load", "mirror", "address")} | changes
        asked = {name: str(value) for name, value in again.items() if value is not None}
        own = [name for name in self.families if name not in (*FAMILIES, LOOP)]
        if callable(self.train) or (own and self.load is None):
            texts = {name: repr(text) for name, text in asked.items()}
            texts |= {"train": train_text(self.train)} if callable(self.train) else {}
            given = ", ".join([repr(str(study)), *(f"{name}={text}" for name, text in texts.items())])
            once = f", once {' and '.join(own)} is registered" if own else ""
            return f"search(Settings.of_study({given})) in Python{once}"
        return f"{self.entry} {shlex.join(flag_words({'resume': str(study), **asked}))}"

    @classmethod
    def read_config(cls, file: Path, beside: Collection[str] = ()) -> dict[str, Any]:
        """Return the settings of a YAML or study.json file, as they are typed; but for what no study keeps, and what is
        executed, --load and --train: these must be among what is typed `beside` it. UserError: it cannot be read, or
        has what is no setting.
        """
        import yaml  # not for --help

        class Loader(yaml.SafeLoader):
            """A loader to which 1e-4 is a number, as in YAML 1.2 and TOML, and a key that comes twice an error."""

            def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
                keys = [key.value for key, _ in node.value]
                if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:
                    raise invalid("config", f"'{file}' has {twice[0]} twice: keep one")
                return super().construct_mapping(node, deep)

        Loader.add_implicit_resolver(
            "tag:yaml.org,2002:float", re.compile(rf"[-+]?{NUMBER}[eE][-+]?[0-9]+"), list("-+.0123456789")
        )
        try:
            found = yaml.load(file.read_text(encoding="utf-8"), Loader)
        except OSError as error:
            raise invalid("config", f"'{file}' cannot be read ({error.strerror}): name a YAML file") from None
        except UserError:
            raise
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            first = str(error).partition("\n")[0]
            raise invalid("config", f"'{file}' is no YAML ({first:.80}): write lines such as budget: 8h") from None
        if isinstance(found, dict) and isinstance(found.get("settings"), dict):
            found = found["settings"]
        known = {each.name: each for each in fields(cls) if each.name != "config"}
        typed: dict[str, Any] = {}
        for given, value in (found if isinstance(found, dict) else {"": found}).items():
            name = str(given).replace("-", "_")
            if name in typed:
                raise invalid("config", f"'{file}' has {given} twice: keep one")
            if name not in known:
                raise invalid("config", f"'{file}' has {given!r:.60}, which is no setting: --help lists the flags")
            if isinstance(value, bool) != is_switch(known[name]):
                raise invalid(
                    "config", f"'{file}' has {given}: {value!r:.60}: write it as it is typed, a switch as true"
                )
            never = name in EXECUTED or not flag_of(known[name]).stored
            if never and value is not False and name not in beside:
                what = f"'{file}' has {given}: {value!r:.200}, which is never taken from a file"
                how = shlex.join(flag_words({name: value if value is True else str(value)}))
                raise invalid("config", f"{what}: add {how}")
            if not never:
                typed[name] = value if isinstance(value, bool) else words_of(known[name], value)
        return typed

    @classmethod
    def of_study(cls, folder: Path | str, *, experiment: str | None = None, **changes: Any) -> Self:
        """Return the settings to resume the study in a folder: its own, with `changes`, of which only a few may differ.

        experiment: the one that it is a study of; None: a search. UserError: the folder holds no such study, its
        settings are damaged, or one that may not change does.
        """
        known = cls.__dataclass_fields__
        folder = Path(parse_setting(known["resume"], str(folder)))
        loaded, mirror = (
            None if changes.get(name) is None else parse_setting(known[name], str(changes[name]))
            for name in ("load", "mirror")
        )
        if loaded is not None:
            load_families(loaded)
        stored: Any = None
        if mirror is not None and not os.path.exists(folder):
            if changes.get("plan"):  # a plan only reads
                folder = Path(mirror, folder.name)
            else:
                restore_from_mirror(mirror, folder)
        try:
            study = study_facts(folder)
            stored, is_of = study["settings"], study.get("experiment")
            again = {"load": loaded, "train": changes.get("train")}
            settings = cls.from_stored(stored, resume=folder, out=folder, **again) if is_of == experiment else None
        except OSError as error:
            raise invalid("resume", f"'{folder}' has no study.json ({error.strerror}): name a study's folder") from None
        except WithoutLoop:
            what = f"'{folder}' is of a training loop of yours"
            if changes.get("plan"):
                raise invalid("plan", f"{what}, which has no plan, as its speed is unknown: leave it out") from None
            train = str(stored.get("train"))
            call = f"call search(Settings.of_study({str(folder)!r}, train={train})) in Python"
            how = f"add --train {train!r}" if os.path.isabs(train) else call
            raise invalid("resume", f"{what}: {how}") from None
        except UnknownFamily as error:
            file = repr(stored["load"]) if "load" in stored else "FILE, the Python file that registers it"
            missing = f"'{folder}' has a family {error.name!r}, which is not known here"
            raise invalid("resume", f"{missing}: add --load {file}; in Python, register it first") from None
        except (ValueError, RecursionError) as error:
            if changes.get("train") is not None and isinstance(stored, dict) and "train" not in stored:
                raise invalid("train", f"'{folder}' is of no training loop of yours: leave it out") from None
            if any(changes.get(name) is not None and str(error).startswith(f"--{name}: ") for name in EXECUTED):
                raise  # it is what was typed: the study's own is never taken
            raise invalid("resume", f"'{folder}' has a damaged study.json ({error}): name another study") from None
        if settings is None:
            what, entry = f"the experiment {is_of}" if is_of else "a search", script_command("tune/run.py")
            entry = f"{script_command('tune/experiment.py')} {is_of}" if is_of else entry
            raise invalid("resume", f"'{folder}' is of {what}: write {entry} --resume {shlex.quote(str(folder))}")
        if changes.get("trials_per_gpu") == AUTO:  # the study has the number that was found
            del changes["trials_per_gpu"]
        changed = replace(settings, **changes)
        own = [each.name for each in fields(cls) if not flag_of(each).on_resume]
        others = [flag_name(name) for name in own if getattr(changed, name) != getattr(settings, name)]
        if others:
            names = ", ".join(others)
            raise UserError(f"{names}: not as in '{folder}', and a study keeps its own settings: leave {names} out")
        return changed

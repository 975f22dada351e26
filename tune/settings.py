"""All a user can set: one field a setting, with its default, its help and its text form; standard library only."""

import json
import math
import pkgutil
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

from tune.errors import UserError, called
from tune.flags import (  # fmt: skip
    AUTO,
    Command,
    Flags,
    families_text,
    flag_name,
    flag_of,
    gain_text,
    invalid,
    is_switch,
    parse_corpus,
    parse_families,
    parse_gain,
    parse_path,
    parse_paths,
    parse_setting,
    parse_share,
    parse_sharing,
    paths_text,
    typed,
)
from tune.load import check_function, check_loop, load, loop_in
from tune.own_space import LONGEST_WORD, LOOP, Dimension, made_space, parse_space, space_text
from tune.recipe import SETTABLE, parse_set, set_text, small_text_seconds
from tune.search_space import FAMILIES, FREED, PRECISIONS, SPACES, Space, Value, fix_text, parse_fix, parse_vary
from tune.store.journal import spent_at_its_end
from tune.store.mirror import bring_back
from tune.units import DURATIONS, bytes_text, duration_text, parse_bytes, parse_duration, parse_price
from tune.units import SIZES as MEMORY_FORMS

LARGEST_SEED = 2**32 - 1  # NumPy's
KINDS = {"cpu": "CPU core", "cuda": "GPU"}
HUB_PAIRS = "hub:Helsinki-NLP/opus-100:en-es"
HUB_TEXT = "hub:karpathy/tiny_shakespeare"
HUB_LARGE_TEXT = "hub:Salesforce/wikitext:wikitext-103-raw-v1"
SMALL_TEXT_SERVES = " or ".join(
    f"{duration_text(round(small_text_seconds(kind)))} of a {name}" for kind, name in KINDS.items()
)


def free_folder() -> Path:
    """`runs/<UTC time>` in the present folder, under a name that is still free."""
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    taken = (Path("runs", name if not again else f"{name}-{again}") for again in range(1000))
    try:
        return parse_path(str(next(folder for folder in taken if not folder.exists())))
    except UserError as error:
        raise invalid("out", str(error)) from None


TIME: dict[str, Any] = {"form": "TIME", "parse": parse_duration, "show": duration_text}
NUMBER_OF: dict[str, Any] = {"form": "N", "parse": int}
FILE: dict[str, Any] = {"form": "FILE", "parse": parse_path}
CORPUS: dict[str, Any] = {"form": "FILE|hub:ID|builtin", "parse": parse_corpus}
FOLDER: dict[str, Any] = {"form": "FOLDER", "parse": parse_path, "stored": False}


def parse_train(text: str) -> str:
    """`train.py:train`, its file absolute."""
    file, function = loop_in(text)
    return str(parse_path(str(file))) + ("" if function is None else f":{function}")


def train_text(train: object) -> str:
    """As it was typed; of a function its name."""
    return train if isinstance(train, str) else str(getattr(train, "__name__", "train"))


OF_A_LOOP = ("space", "metric", "maximize", "life")
OF_FAMILIES = (
    *("load", "fix", "vary", "set", "stop_below_gain", "confirm", "learn_from", "memory_limit", "translation_corpus"),
    *("text_corpus", "skip_bad_lines", "plan"),
)
"""Of the settings, what a training loop of a user's own alone has, and what it has not."""
NO_METRIC = ("step", "save")


class WithoutLoop(UserError):
    """A study of a training loop that was not named again."""


class UnknownFamily(UserError):
    """A family that is neither built in nor registered."""

    def __init__(self, name: str) -> None:
        rule = f"write {' or '.join(SPACES)}, or several; one of your own comes with --load FILE"
        super().__init__(f"--families: {name!r} is no family: {rule}")
        self.name = name


@dataclass(frozen=True, kw_only=True)
class Settings(Flags):
    """What a study was asked for; each setting may be given as its flag is typed, such as Settings(budget="2h").

    UserError: `--flag: value: rule: remedy`, in one line.
    """

    command: ClassVar[Command] = Command(
        script="tune/run.py", does="tune.study:run", early="nothing was written",
        about="Find the best small Transformer that a fixed number of device-hours can buy.",
    )  # fmt: skip
    budget: float = field(  # device-seconds, as all times here are seconds
        metadata=typed(
            f"the cap in device-hours, never exceeded: {DURATIONS}; with --resume the new total",
            **TIME,
            on_resume=True,
        )
    )
    families: Mapping[str, float] = field(  # shares of the cap that add up to 1
        default_factory=lambda: {name: 1 / len(FAMILIES) for name in FAMILIES},
        metadata=typed(
            "what to search and each share of the cap in per cent; what one leaves over goes to the other "
            "(default: half each)",
            form="NAME[=SHARE],...",
            parse=parse_families,
            show=families_text,
        ),
    )
    load: Path | None = field(
        default=None,
        metadata=typed(
            "a Python file of yours that registers families; it is executed, and with --resume only where it is typed "
            "again",
            **FILE,
            on_resume=True,
        ),
    )
    train: str | Path | Callable[[dict[str, Any]], object] | None = field(
        default=None,
        metadata=typed(
            "a training loop of yours in the place of the families: a script, or a function of a configuration; it "
            "runs in its folder, and with --resume only where it is typed again",
            form="FILE[:FUNCTION]",
            parse=parse_train,
            show=train_text,
            on_resume=True,
        ),
    )
    space: Mapping[str, Dimension] = field(
        default_factory=dict,
        metadata=typed(
            "of --train: what varies, a TOML file of lines such as width = [64, 128] and "
            "rate = { low = 1e-4, high = 1e-2, log = true }",
            form="FILE",
            parse=parse_space,
            show=space_text,
        ),
    )
    metric: str | None = field(
        default=None, metadata=typed("of --train: what it reports and the search makes small", form="NAME")
    )
    maximize: str | None = field(
        default=None, metadata=typed("the same where more is better; one of the two", form="NAME")
    )
    life: int | None = field(
        default=None,
        metadata=typed(
            "of --train: the steps after which a trial is complete (default: it goes on for as long as it is given)",
            form="STEPS",
            parse=int,
        ),
    )
    fix: Mapping[str, Value] = field(
        default_factory=dict,
        metadata=typed(
            "dimensions of the space not to vary, such as precision=bf16,heads=4",
            form="NAME=VALUE,...",
            parse=parse_fix,
            show=fix_text,
        ),
    )
    vary: tuple[str, ...] = field(
        default=(),
        metadata=typed(
            f"what of the recipe to vary too, from a quarter of its own value to four times it: {', '.join(FREED)} "
            "(context: of nanogpt, whose trials are then judged on the same tokens, each with its own context)",
            form="NAME,...",
            parse=parse_vary,
            show=",".join,
        ),
    )
    set: Mapping[str, float | str] = field(
        default_factory=dict,
        metadata=typed(
            "what of the recipe is not to follow from device, cap and text, such as context=256,batch_tokens=1536; "
            f"there are {', '.join(SETTABLE)}; --plan tells them, and why",
            form="NAME=VALUE,...",
            parse=parse_set,
            show=set_text,
        ),
    )
    devices: int | None = field(
        default=None,
        metadata=typed("GPUs to use, or CPU cores where Ray sees no GPU (default: all there are)", **NUMBER_OF),
    )
    trials_per_gpu: int | str = field(
        default=1,
        metadata=typed(
            "trials that share a GPU, each charged its part of it; auto: as many as its memory and the CPU cores hold",
            form="N|auto",
            parse=parse_sharing,
        ),
    )
    address: str | None = field(
        default=None,
        metadata=typed(
            "the Ray cluster to run on, as `ray start --head` printed it (default: a Ray of its own on this machine)",
            form="HOST:PORT",
            stored=False,
            on_resume=True,
        ),
    )
    oversubscribe: bool = field(default=False, metadata=typed("let more devices be asked for than there are"))
    deadline: float | None = field(
        default=None,
        metadata=typed("wall clock to end within, from the start of the study, beside the cap", **TIME, on_resume=True),
    )
    patient: bool = field(
        default=False,
        metadata=typed(
            "let few devices work long where that promises a better winner (default: on all of them, so that the wall "
            "clock stays within about twice cap / devices)"
        ),
    )
    stop_below_gain: float | None = field(  # nats a device-hour
        default=None,
        metadata=typed(
            "hand devices back where an hour more is expected to make the best loss better by less than so many nats, "
            "by a law of all trials, such as 0.002/h (default: the cap is spent)",
            form="NATS/h",
            parse=parse_gain,
            show=gain_text,
            on_resume=True,
        ),
    )
    seed: int = field(default=0, metadata=typed("for every random choice", **NUMBER_OF))
    confirm: int = field(
        default=0,
        metadata=typed(
            "train the last two of each family anew with so many other seeds each, 2 or more, on a third of the cap, "
            "so that the ranking says whether they are told apart (default: none)",
            **NUMBER_OF,
        ),
    )
    out: Path | None = field(
        default=None, metadata=typed("the study's folder, made new (default: runs/<time>)", **FOLDER)
    )
    rungs: str = field(
        default="seconds",
        metadata=typed("compare trials at equal device-seconds or at equal tokens", choices=("seconds", "tokens")),
    )
    search: str = field(
        default="tpe",
        metadata=typed(
            "how configurations are suggested: by what is promising before anything is known (prior), by that and then "
            "by results (tpe), or each equally likely (random)",
            choices=("tpe", "prior", "random"),
        ),
    )
    learn_from: tuple[Path, ...] = field(
        default=(),
        metadata=typed(
            "earlier searches: what is the same here of their speeds, prices, memory, losses and winners counts from "
            "the beginning",
            form="FOLDER,...",
            parse=parse_paths,
            show=paths_text,
        ),
    )
    memory_limit: int | None = field(  # bytes
        default=None,
        metadata=typed(
            f"memory a trial may take beside what its process holds without it: {MEMORY_FORMS}; what will not fit is "
            "not launched (default: none on a CPU, all there is on a GPU)",
            form="SIZE",
            parse=parse_bytes,
            show=bytes_text,
        ),
    )
    report_every: float = field(default=5.0, metadata=typed("training between two reports of a trial", **TIME))
    translation_corpus: Path | str | None = field(
        default=None,
        metadata=typed(
            "pairs: a file of lines source<TAB>target, a dataset of the Hugging Face hub, or builtin: a small grammar, "
            f"good for a smoke test (default: {HUB_PAIRS}, or builtin where the hub cannot be reached)",
            **CORPUS,
        ),
    )
    text_corpus: Path | str | None = field(
        default=None,
        metadata=typed(
            "text for nanogpt: a file, a dataset of the Hugging Face hub, or builtin: Python's standard library, good "
            f"for a smoke test (default: {HUB_TEXT} for a family's first {SMALL_TEXT_SERVES}, {HUB_LARGE_TEXT} for a "
            "family with more, or builtin where the hub cannot be reached)",
            **CORPUS,
        ),
    )
    mirror: Path | None = field(
        default=None,
        metadata=typed(
            "a folder on a disk that lives longer than this machine: it has a copy of the study, a minute old at most, "
            "which --resume takes where the study's own folder is gone",
            form="FOLDER", parse=parse_path, on_resume=True,
        ),
    )  # fmt: skip
    price_per_hour: float | None = field(
        default=None,
        metadata=typed(
            "what a device-hour costs, in any currency: money is told beside device-hours",
            form="PRICE", parse=parse_price, on_resume=True,
        ),
    )  # fmt: skip
    skip_bad_lines: bool = field(default=False, metadata=typed("leave out and count pairs without a tab"))
    plan: bool = field(
        default=False,
        metadata=typed(
            "print what the search would do and cost, with --resume what is left and what other caps would buy, and "
            "end: nothing is spent or written",
            stored=False,
            on_resume=True,
        ),
    )
    resume: Path | None = field(
        default=None, metadata=typed("go on with the study in this folder, with its own settings", **FOLDER)
    )

    def __post_init__(self) -> None:
        if self.load is not None:  # the others may name what it registers
            load(parse_path(str(self.load)))
        for each in fields(self):
            if isinstance(value := getattr(self, each.name), str | Path):
                object.__setattr__(self, each.name, parse_setting(each, str(value)))
        for name in ("budget", "deadline", "report_every"):
            if (seconds := getattr(self, name)) is not None and seconds <= 0:
                raise invalid(name, f"{duration_text(seconds)!r} is not above zero: write {DURATIONS}")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise invalid("memory_limit", f"'{bytes_text(self.memory_limit)}' is not above zero: write {MEMORY_FORMS}")
        if self.stop_below_gain is not None:
            parse_setting(self.__dataclass_fields__["stop_below_gain"], gain_text(self.stop_below_gain))
        if self.price_per_hour is not None:
            parse_setting(self.__dataclass_fields__["price_per_hour"], str(self.price_per_hour))
        self._check_own()
        if unknown := [name for name in self.families if name not in SPACES and name != LOOP]:
            raise UnknownFamily(unknown[0])
        shares = families_text(self.families)
        if not all(0 < share <= 1 for share in self.families.values()):
            raise invalid("families", f"{shares!r}: a share is above 0 and at most 100; leave a family out for none")
        if not math.isclose(sum(self.families.values()), 1):
            raise invalid("families", f"{shares!r} does not add up: make the shares, in per cent, add up to 100")
        if self.fix:
            parse_fix(fix_text(self.fix))
        for family in self.families if self.train is None else ():
            Space(family=family, precisions=PRECISIONS, fix=self.fix)
        if self.set:
            try:
                object.__setattr__(self, "set", parse_set(set_text(self.set)))
            except UserError as error:
                raise invalid("set", str(error)) from None
        if "context" in self.set and list(self.families) == ["translation"]:
            raise invalid("set", "'context' is of text, and translation has rows of sentences: leave it out")
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
        if self.confirm < 0 or self.confirm == 1:
            raise invalid("confirm", f"'{self.confirm}' is too few: two seeds or more tell how they differ; write 2")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise invalid("seed", f"'{self.seed}' is out of range: a seed is from 0 to {LARGEST_SEED}; write --seed 0")
        super().__post_init__()

    def _check_own(self) -> None:
        """UserError: a training loop of a user's own lacks something, or what is of it or of the families alone stands
        beside the other."""
        if self.train is None:
            if LOOP in self.families:
                raise WithoutLoop("--train: missing: a training loop of yours is named by it; write --train FILE")
            if alone := [name for name in OF_A_LOOP if getattr(self, name) not in (None, {})]:
                raise invalid(alone[0], "is of a training loop of your own: add --train FILE, or leave it out")
            return
        others = {each.name: each.default for each in fields(self) if each.name in OF_FAMILIES}
        for name, default in others.items():
            if getattr(self, name) not in (default, {}, ()):
                raise invalid(name, "is of the families that come with the project: leave it out with --train")
        if set(self.families) not in ({LOOP}, set(FAMILIES)):
            raise invalid("families", f"{families_text(self.families)!r}: --train is in their place: leave one out")
        object.__setattr__(self, "families", {LOOP: 1.0})
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
        try:
            object.__setattr__(self, "space", made_space(self.space))
        except UserError as error:
            raise invalid("space", str(error)) from None
        names = [name for name in (self.metric, self.maximize) if name is not None]
        if len(names) != 1:
            what = "missing: say what --train reports" if not names else f"{self.metric!r} beside --maximize: are two"
            raise invalid("metric", f"{what}; write --metric loss, or --maximize accuracy")
        if not names[0].strip() or not names[0].isprintable() or len(names[0]) > LONGEST_WORD or names[0] in NO_METRIC:
            flag = "metric" if self.metric is not None else "maximize"
            raise invalid(flag, f"{names[0]!r:.60} is no name of a metric: write one such as loss")
        if names[0] in self.space:
            raise invalid("metric", f"{names[0]!r} is a dimension of --space too: name one of them otherwise")
        if self.life is not None and self.life < 1:
            raise invalid("life", f"'{self.life}' is too few: write the steps of a whole training, 1 or more")

    @classmethod
    def from_flags(cls, typed: Mapping[str, Any], experiment: str | None = None) -> Self:
        """As in Flags. experiment: the one that it is a study of; None: a search."""
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
        """The folder that a new study would have. UserError: it is taken, or cannot be made. Leaves nothing behind."""
        folder = self.out or free_folder()
        try:
            taken = folder.exists() or folder.is_symlink()
            if not taken:
                tempfile.TemporaryFile(dir=next(parent for parent in folder.parents if parent.exists())).close()
        except OSError as error:
            raise invalid("out", f"'{folder}' cannot be made ({error.strerror}): name another place") from None
        if taken and self.out is not None:
            raise invalid("out", f"'{folder}' exists already: a study makes its folder; name another, or --resume it")
        return folder

    def check_files(self) -> None:
        """UserError: a file that is named cannot be read, or the mirror not be written. Before anything is loaded that
        takes its time."""
        if self.mirror is not None:
            try:
                tempfile.TemporaryFile(dir=self.mirror).close()
            except OSError as error:
                remedy = "make that folder, or mount its disk"
                raise invalid("mirror", f"'{self.mirror}' cannot be written ({error.strerror}): {remedy}") from None
            if self.resume is None and self.out is not None and (copy := self.mirror / self.out.name).exists():
                raise invalid("mirror", f"'{copy}' exists already: name another folder, or --out another name")
        for name in ("translation_corpus", "text_corpus"):
            if isinstance(path := getattr(self, name), Path):
                try:
                    path.open("rb").close()
                except OSError as error:
                    raise invalid(name, f"'{path}' cannot be read ({error.strerror}): name a file") from None

    def nothing_to_do(self) -> str | None:
        """A line that says so, where the study to go on with came to its own end under this very cap; else None."""
        spent = None if self.resume is None or self.plan else spent_at_its_end(self.resume, self.budget)
        if spent is None:
            return None
        used, cap = duration_text(round(spent, 1)), duration_text(self.budget)
        also = f"a larger --budget goes on, and python analysis/rank.py {self.resume} ranks what was found"
        return f"{self.resume}: it is over: spent {used} of {cap}; {also}"

    def make_folder(self) -> Path:
        """Make it: no other search has it, even one that was begun in the same moment. UserError as above."""
        while True:
            with suppress(FileExistsError):
                (folder := self.new_folder()).mkdir(parents=True)
                return folder

    def slots(self, available: int) -> int:
        """How many trials run at once where so many devices are available. UserError: too many to ask for."""
        wanted = available if self.devices is None else self.devices
        if wanted > available and not self.oversubscribe:
            remedy = f"ask for at most {available}, or add --oversubscribe"
            raise invalid("devices", f"'{wanted}' is more than the {available} there are: {remedy}")
        return wanted

    def too_small(self, smallest: float) -> UserError:
        """The error for a cap that does not pay for one rung of one trial; `smallest` in device-seconds does."""
        asked, least = duration_text(self.budget), duration_text(math.ceil(smallest))
        what = f"a last comparison of {2 * self.confirm} trainings" if self.confirm else "one rung of one trial"
        return invalid("budget", f"{asked!r} does not pay for {what}: write at least {least}")

    def too_late(self, spent: float) -> UserError:
        """The error for a new total that is less than what the study spent already, in device-seconds."""
        asked, used = duration_text(self.budget), duration_text(math.ceil(spent))
        return invalid("budget", f"{asked!r} is less than the {used} that the study spent: give a new total above that")

    def stored(self) -> dict[str, str | bool]:
        """What study.json keeps: each setting as a user types it; those not set are left out."""
        return {
            each.name: value if isinstance(value, bool) else flag_of(each).show(value)
            for each in fields(self)
            if flag_of(each).stored and (value := getattr(self, each.name)) not in (None, {}, ())
        }

    def too_little_memory(self, family: str, limit: float, least: float) -> UserError:
        """The error for a limit in which no config of a family fits; `least` bytes hold the smallest."""
        there, needed = bytes_text(limit), bytes_text(least + 1e6)
        rule = f"no configuration of {family}, of which the smallest needs about {needed}"
        if self.memory_limit is not None and self.memory_limit <= limit:
            return invalid("memory_limit", f"'{there}' holds {rule}: write that or more")
        if self.trials_per_gpu != 1:
            return invalid("trials_per_gpu", f"'{self.trials_per_gpu}' leaves a trial {there}, {rule}: write fewer")
        return invalid("families", f"{family!r}: a GPU's {there} hold {rule}: leave it out, or take a larger GPU")

    @classmethod
    def from_stored(cls, stored: object, **others: Any) -> Self:
        """The inverse of stored(), but for `load`: whose file is executed is said anew. UserError: something that
        stored() did not write; a stranger may have.
        """
        known = {each.name: each for each in fields(cls) if flag_of(each).stored}
        if not isinstance(stored, dict) or not {"budget"} <= set(stored) <= set(known):
            raise UserError("its settings are not those of a study")
        if not all(isinstance(value, bool if is_switch(known[name]) else str) for name, value in stored.items()):
            raise UserError("a setting is of the wrong type")
        executed = ("load", "train")
        return cls(**{name: value for name, value in stored.items() if name not in executed}, **others)

    def to_go_on(self, study: Path) -> str:
        """What to type to go on with a study of these settings, or to call where its families came from Python."""
        if self.train is not None and not isinstance(self.train, str):
            return f"search(Settings.of_study({str(study)!r}, train={train_text(self.train)})) in Python"
        if self.train is not None:
            return f"{called('tune/run.py')} --resume {shlex.quote(str(study))} --train {shlex.quote(self.train)}"
        own = [name for name in self.families if name not in FAMILIES]
        if own and self.load is None:
            return f"search(Settings.of_study({str(study)!r})) in Python, once {' and '.join(own)} is registered"
        loaded = "" if self.load is None else f" --load {shlex.quote(str(self.load))}"
        mirror = "" if self.mirror is None else f" --mirror {shlex.quote(str(self.mirror))}"
        return f"{called('tune/run.py')} --resume {shlex.quote(str(study))}{loaded}{mirror}"

    @classmethod
    def of_study(cls, folder: Path | str, *, experiment: str | None = None, **changes: Any) -> Self:
        """To go on with the study in a folder: its own settings; `changes` agree, or are of the few that may change.

        experiment: that it is a study of; None: a search. UserError: it holds no such study, or its settings
        are damaged or others.
        """
        folder = Path(parse_setting(cls.__dataclass_fields__["resume"], str(folder)))
        loaded = None if changes.get("load") is None else parse_path(str(changes["load"]))
        if loaded is not None:
            load(loaded)
        stored: Any = None
        if changes.get("mirror") is not None and not folder.exists():
            mirror = parse_path(str(changes["mirror"]))
            if changes.get("plan"):  # which only reads
                folder = mirror / folder.name
            else:
                bring_back(mirror, folder)
        try:
            study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
            whole = isinstance(study, dict)
            stored, is_of = (study.get("settings"), study.get("experiment")) if whole else (None, experiment)
            again = {"load": loaded, "train": changes.get("train")}
            settings = cls.from_stored(stored, resume=folder, out=folder, **again) if is_of == experiment else None
        except OSError as error:
            raise invalid("resume", f"'{folder}' has no study.json ({error.strerror}): name a study's folder") from None
        except WithoutLoop:
            what = f"'{folder}' is of a training loop of yours"
            raise invalid("resume", f"{what}: add --train {stored.get('train', 'FILE')!r}") from None
        except UnknownFamily as error:
            file = repr(stored["load"]) if "load" in stored else "FILE, the Python file that registers it"
            missing = f"'{folder}' has a family {error.name!r}, which is not known here"
            raise invalid("resume", f"{missing}: add --load {file}; in Python, register it first") from None
        except (ValueError, RecursionError) as error:
            raise invalid("resume", f"'{folder}' has a damaged study.json ({error}): name another study") from None
        if settings is None:
            what, entry = (f"the experiment {is_of}", f"experiment.py {is_of}") if is_of else ("a search", "run.py")
            raise invalid("resume", f"'{folder}' is of {what}: write {called(f'tune/{entry}')} --resume {folder}")
        changed = replace(settings, **changes)
        own = [each.name for each in fields(cls) if not flag_of(each).on_resume]
        others = [flag_name(name) for name in own if getattr(changed, name) != getattr(settings, name)]
        if others:
            names = ", ".join(others)
            raise UserError(f"{names}: not as in '{folder}', and a study keeps its own settings: leave {names} out")
        return changed


EXPERIMENTS = {
    "ablation": "translation",
    **dict.fromkeys(("methods", "batch_size", "estimates", "loader", "stages", "precision", "transfer"), "nanogpt"),
    **dict.fromkeys(("scaling", "large_batch", "data_parallel", "curves"), "nanogpt"),
}
"""The experiments, and the family that each is of unless another is asked for."""


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings(Settings):
    """The search's settings, with one family, and which experiment it is."""

    command: ClassVar[Command] = Command(
        script="tune/experiment.py", does="tune.experiments.catalogue:run", early="nothing was written",
        about="Repeat an experiment of the published reports, under a cap of device-hours.",
        flags=(
            *("name", "list", "budget", "families", "fix", "set", "scale", "seeds", "devices", "oversubscribe"),
            *("memory_limit", "seed", "out", "translation_corpus", "text_corpus", "skip_bad_lines", "plan", "resume"),
            "of",
        ),
    )  # fmt: skip
    name: str = field(
        default="",
        metadata=typed(f"of {', '.join(EXPERIMENTS)}", form="NAME", places="?", stored=False, on_resume=True),
    )
    list: bool = field(default=False, metadata=typed("name the experiments, and what each is worth here", stored=False))
    families: Mapping[str, float] = field(
        metadata=typed(
            "the model (default: the experiment's own)", form="translation|nanogpt", parse=parse_families,
            show=families_text,
        ),
    )  # fmt: skip
    set: Mapping[str, float | str] = field(
        default_factory=dict,
        metadata=typed(
            f"what of the family's recipe is to be another, such as context=256; there are {', '.join(SETTABLE)}",
            form="NAME=VALUE,...", parse=parse_set, show=set_text,
        ),
    )  # fmt: skip
    scale: float = field(
        default=1.0,
        metadata=typed(
            "the share of its training that an experiment does, such as 0.01", form="SHARE", parse=parse_share
        ),
    )
    seeds: int = field(
        default=1, metadata=typed("how often each training is repeated, with another seed", form="N", parse=int)
    )
    of: Path | None = field(
        default=None,
        metadata=typed(
            "of scaling: a search's study, whose winner's family, configuration, text and seed it takes; of several "
            "families that with the largest share, or the one that --families names",
            form="FOLDER", parse=parse_path,
        ),
    )  # fmt: skip
    recipe: Mapping[str, float | str] = field(  # that winner's, where it is not the family's own; has no flag
        default_factory=dict, metadata=typed("", parse=parse_set, show=set_text)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.families) > 1:
            names = ",".join(self.families)
            raise invalid("families", f"{names!r} are two, and an experiment is on one: write one of them")
        if not 0 < self.scale <= 1:
            raise invalid("scale", f"'{self.scale}' is out of range: write a share above 0 and at most 1")
        if self.seeds < 1:
            raise invalid("seeds", f"'{self.seeds}' is too few: write 1 or more")

    @classmethod
    def from_flags(cls, typed: Mapping[str, Any], experiment: str | None = None) -> Self:
        """As above. With --of the winner that is meant is read first."""
        if "list" in typed:
            return cls(budget="1s", families="nanogpt", list=True)  # type: ignore[arg-type]
        name = typed.get("name", "")
        if {"plan", "resume"} <= typed.keys():
            raise invalid("plan", "is of an experiment that is to begin: leave --plan or --resume out")
        if name not in EXPERIMENTS:
            raise UserError(f"NAME: {name!r} is no experiment: write one of {', '.join(EXPERIMENTS)}")
        asked = {} if "resume" in typed else {"families": EXPERIMENTS[name]}
        if "of" in typed and "resume" not in typed:
            asked = pkgutil.resolve_name("tune.experiments.catalogue:of_winner")(name, dict(typed))
        return super().from_flags({**typed, **asked} if "of" in typed else {**asked, **typed}, experiment=name)

    @property
    def family(self) -> str:
        """The one there is."""
        return next(iter(self.families))

    def too_small_for(self, experiment: str, smallest: float, others: Sequence[str]) -> UserError:
        """The error for a cap that does not pay for an experiment; `smallest` in device-seconds or `others` would."""
        asked, least = duration_text(self.budget), duration_text(math.ceil(smallest))
        remedy = ", or ".join([f"at least {least}", *others])
        return invalid("budget", f"{asked!r} does not pay for {experiment}: write {remedy}")

"""The flags of a search: one field a setting, with its default, its help and its text form; standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tune.errors import UserError
from tune.flags import (
    Command,
    Flags,
    families_text,
    flag_field,
    gain_text,
    parse_corpus,
    parse_families,
    parse_gain,
    parse_path,
    parse_paths,
    parse_sharing,
    paths_text,
)
from tune.load import parse_loop_name
from tune.own_space import first_text, parse_first, parse_range, parse_space, range_text, space_text
from tune.recipe import SETTABLE, WORDS, parse_set, set_text, small_text_seconds
from tune.search_space import FAMILIES, VARIABLE_RECIPE_FIELDS, Dimension, Value, fix_text, parse_fix, parse_vary
from tune.units import (
    DURATIONS,
    MEMORY_FORMS,
    at_most_text,
    bytes_text,
    duration_text,
    parse_at_most,
    parse_bytes,
    parse_duration,
    parse_price,
    whole_text,
)

LOOP_ONLY_SETTINGS = ("metric", "maximize", "life")
FAMILY_ONLY_SETTINGS = (
    *("load", "vary", "set", "at_most", "objective", "stop_below_gain", "confirm", "learn_from", "memory_limit"),
    *("deterministic", "translation_corpus", "text_corpus", "own_corpus", "skip_bad_lines", "plan"),
)
"""Settings that only a user's own training loop has, and those that it does not have."""
SET_NAMES = ", ".join(f"{name} ({' or '.join(WORDS[name])})" if name in WORDS else name for name in SETTABLE)
KINDS = {"cpu": "CPU core", "cuda": "GPU"}
HUB_PAIRS = "hub:Helsinki-NLP/opus-100:en-es"
HUB_TEXT = "hub:karpathy/tiny_shakespeare"
HUB_LARGE_TEXT = "hub:Salesforce/wikitext:wikitext-103-raw-v1"
SMALL_TEXT_SERVES = " or ".join(f"{whole_text(small_text_seconds(kind))} of a {name}" for kind, name in KINDS.items())
MOST_TOY_SECONDS = 3600.0
"""Largest cap whose search takes the toy corpora unasked, as a smoke test: what wins on them is worth no more."""
TOY_SERVES = f"builtin where the hub cannot be reached and the cap is at most {whole_text(MOST_TOY_SECONDS)}"

TIME: dict[str, Any] = {"metavar": "TIME", "parse": parse_duration, "format": duration_text}
NUMBER_OF: dict[str, Any] = {"metavar": "N", "parse": int}
FILE: dict[str, Any] = {"metavar": "FILE", "parse": parse_path}
CORPUS: dict[str, Any] = {"metavar": "FILE|hub:ID|builtin", "parse": parse_corpus}
FOLDER: dict[str, Any] = {"metavar": "FOLDER", "parse": parse_path, "stored": False}


def parse_train(text: str) -> str:
    """Return what --train names, such as `train.py:train`, with its file absolute."""
    file, function = parse_loop_name(text)
    return str(parse_path(str(file))) + ("" if function is None else f":{function}")


def train_text(train: object) -> str:
    """Return what --train was typed as; for a function from Python, its name."""
    return train if isinstance(train, str) else str(getattr(train, "__name__", "train"))


def parse_life(text: str) -> int:
    """`2000` -> 2000. UserError: no whole number."""
    try:
        return int(text)
    except ValueError:
        rule = "is not a whole number of steps, as the loop reports them"
        raise UserError(f"{text!r} {rule}: write it without a unit, such as 2000") from None


@dataclass(frozen=True, kw_only=True)
class SearchFlags(Flags):
    """The settings of a search as flags; Settings checks them."""

    command: ClassVar[Command] = Command(
        script="tune/run.py", entry_point="tune.study:run", on_interrupt="nothing was written",
        description="Search for the best small Transformer that a fixed number of device-hours can buy.",
        groups={
            "a training loop of your own": ("train", *LOOP_ONLY_SETTINGS),
            "families of models, refused with --train": ("families", "fix", *FAMILY_ONLY_SETTINGS),
        },
    )  # fmt: skip
    budget: float = flag_field(  # device-seconds, as all times here are seconds
        f"the cap in device-hours, never exceeded: {DURATIONS}; with --resume the new total", **TIME, on_resume=True
    )
    families: Mapping[str, float] = flag_field(  # shares of the cap that add up to 1
        "what to search and each share of the cap in per cent; what one leaves over goes to the other "
        "(default: half each)",
        default_factory=lambda: {name: 1 / len(FAMILIES) for name in FAMILIES}, metavar="NAME[=SHARE],...",
        parse=parse_families, format=families_text,
    )  # fmt: skip
    load: Path | None = flag_field(
        "a Python file of yours that registers families; it is executed, so type it again with --resume",
        default=None, **FILE, on_resume=True,
    )  # fmt: skip
    train: str | Path | Callable[[dict[str, Any]], object] | None = flag_field(
        "a training loop of yours in place of the families: a script, or a function that takes a configuration; it "
        "runs in its folder; type it again with --resume",
        default=None, metavar="FILE[:FUNCTION]", parse=parse_train, format=train_text, on_resume=True,
    )  # fmt: skip
    space: Mapping[str, Dimension] = flag_field(
        "a TOML file of what varies, with lines such as width = [64, 128] and rate = { low = 1e-4, high = 1e-2, "
        "log = true }: for --train all dimensions, for families the same as --range",
        default_factory=dict, metavar="FILE", parse=parse_space, format=space_text,
    )  # fmt: skip
    range: Mapping[str, Dimension] = flag_field(
        "other values for a dimension, such as d_model=64..256 or layers=2,4,6; may be typed several times",
        default_factory=dict, metavar="NAME=LOW..HIGH|VALUE,...", parse=parse_range, format=range_text, repeats=True,
    )  # fmt: skip
    at_most: int | None = flag_field(
        "the size of the largest model to try, such as parameters=5M",
        default=None, metavar="parameters=N", parse=parse_at_most, format=at_most_text,
    )  # fmt: skip
    first: tuple[Mapping[str, Value], ...] = flag_field(
        "a configuration to try before all others, such as d_model=128,layers=4; dimensions that it does not name "
        "are the default's; may be typed several times",
        default=(), metavar="NAME=VALUE,...", parse=parse_first, format=first_text, repeats=True,
    )  # fmt: skip
    metric: str | None = flag_field("the reported number to minimize", default=None, metavar="NAME")
    maximize: str | None = flag_field(
        "the reported number to maximize, instead of --metric", default=None, metavar="NAME"
    )
    life: int | None = flag_field(
        "the steps of a whole training (default: it has no end, and goes on for as long as it is given)",
        default=None, metavar="STEPS", parse=parse_life,
    )  # fmt: skip
    fix: Mapping[str, Value] = flag_field(
        "hold dimensions at one of their values, such as heads=4,dropout=0.1",
        default_factory=dict, metavar="NAME=VALUE,...", parse=parse_fix, format=fix_text,
    )  # fmt: skip
    vary: tuple[str, ...] = flag_field(
        "search these parts of the recipe too, from a quarter to four times their value: "
        f"{', '.join(VARIABLE_RECIPE_FIELDS)} (context: nanogpt only)",
        default=(), metavar="NAME,...", parse=parse_vary, format=",".join,
    )  # fmt: skip
    set: Mapping[str, float | str] = flag_field(
        "parts of the recipe that are not to follow from device, cap and text, such as context=256,batch_tokens=1536; "
        f"there are {SET_NAMES}; --plan shows their values, and why",
        default_factory=dict, metavar="NAME=VALUE,...", parse=parse_set, format=set_text,
    )  # fmt: skip
    devices: int | None = flag_field(
        "GPUs to use, or CPU cores where torch sees no GPU; with --resume it may be another number (default: all "
        "there are)",
        default=None, **NUMBER_OF, on_resume=True,
    )  # fmt: skip
    trials_per_gpu: int | str = flag_field(
        "trials that share a GPU, each charged its part of it; auto: as many as its memory and the CPU cores "
        "allow where CUDA's MPS runs, else one",
        default=1, metavar="N|auto", parse=parse_sharing,
    )  # fmt: skip
    cores_per_trial: int = flag_field(
        "CPU cores of each trial where torch sees no GPU, all of them charged", default=1, **NUMBER_OF
    )
    address: str | None = flag_field(
        "the Ray cluster to run on, as `ray start --head` printed it (default: a Ray of its own on this machine)",
        default=None, metavar="HOST:PORT", stored=False, on_resume=True,
    )  # fmt: skip
    oversubscribe: bool = flag_field(
        "allow more CPU cores than this machine has, more GPUs with --plan, and more trials on a GPU than CPU cores "
        "for it (may change with --resume)",
        default=False, on_resume=True,
    )  # fmt: skip
    deadline: float | None = flag_field(
        "wall clock from the start of the study, within which it ends (may change with --resume)",
        default=None, **TIME, on_resume=True,
    )  # fmt: skip
    patient: bool = flag_field(
        "keep more of the cap for one trial, on few devices for long (default: the wall clock stays within about twice "
        "cap / devices, or with --life cap / devices and one whole training)",
        default=False,
    )
    stop_below_gain: float | None = flag_field(  # nats a device-hour
        "hand devices back when another device-hour is expected to lower the best loss by less than so many nats, "
        "such as 0.002/h (may change with --resume; default: the cap is spent)",
        default=None, metavar="NATS/h", parse=parse_gain, format=gain_text, on_resume=True,
    )  # fmt: skip
    seed: int = flag_field("of all random choices", default=0, **NUMBER_OF)
    confirm: int = flag_field(
        "train the last two of each family again with so many other seeds each (2 or more, or 0 for none), on at most "
        "a third of the cap, so that the ranking says whether they differ by more than luck",
        default=0, **NUMBER_OF,
    )  # fmt: skip
    out: Path | None = flag_field("the study's folder, made new (default: runs/<time>)", default=None, **FOLDER)
    rungs: str = flag_field(
        "compare trials at equal device-seconds or at equal tokens", default="seconds", choices=("seconds", "tokens")
    )
    search: str = flag_field(
        "how configurations are suggested: by what suits cap, device and text (prior), by that and then by results "
        "(tpe), or each equally likely (random)",
        default="tpe", choices=("tpe", "prior", "random"),
    )  # fmt: skip
    objective: str = flag_field(
        "what a trial is worth: its loss, or what it adds to the front of size against loss (front), of which "
        "several points are then trained to an end; the winner is the lowest loss in any case",
        default="loss", choices=("loss", "front"),
    )  # fmt: skip
    learn_from: tuple[Path, ...] = flag_field(
        "earlier searches, whose speeds, costs, memory, losses and winners count from the beginning, as far as they "
        "hold here",
        default=(), metavar="FOLDER,...", parse=parse_paths, format=paths_text,
    )  # fmt: skip
    memory_limit: int | None = flag_field(  # bytes
        f"memory that a trial may take beyond what its process holds anyway: {MEMORY_FORMS}; what will not fit is "
        "not launched (default: no limit on a CPU, all there is on a GPU)",
        default=None, metavar="SIZE", parse=parse_bytes, format=bytes_text,
    )  # fmt: skip
    deterministic: bool = flag_field(
        "on a GPU, take only kernels that repeat bit for bit, so that a trial that was interrupted learns exactly what "
        "it would have learned; steps take longer, and none are compiled (a CPU repeats anyway)",
        default=False,
    )
    report_every: float = flag_field(
        "training time between two reports; a --train loop reports itself", default=5.0, **TIME
    )
    translation_corpus: Path | str | None = flag_field(
        "pairs: a file of lines source<TAB>target, a dataset of the Hugging Face hub, or builtin: a small grammar, "
        f"good for a smoke test (default: {HUB_PAIRS}, or {TOY_SERVES})",
        default=None, **CORPUS,
    )  # fmt: skip
    text_corpus: Path | str | None = flag_field(
        "text for nanogpt: a file, a dataset of the Hugging Face hub, or builtin: Python's standard library, good "
        f"for a smoke test (default: {HUB_TEXT} for a family with at most {SMALL_TEXT_SERVES}, else "
        f"{HUB_LARGE_TEXT}; {TOY_SERVES})",
        default=None, **CORPUS,
    )  # fmt: skip
    own_corpus: Path | str | None = flag_field(
        "what a family of yours reads that learns from neither pairs nor text, such as images: a file, a dataset "
        "of the Hugging Face hub, or what it makes up itself (default: builtin)",
        default=None, **CORPUS,
    )  # fmt: skip
    mirror: Path | None = flag_field(
        "a folder on a disk that outlives this machine: the study is copied there every minute, and --resume begins "
        "with the copy if the study's own folder is gone (may change with --resume)",
        default=None, metavar="FOLDER", parse=parse_path, on_resume=True,
    )  # fmt: skip
    price_per_hour: float | None = flag_field(
        "what a device-hour costs, in any currency: money is told beside device-hours (may change with --resume)",
        default=None, metavar="PRICE", parse=parse_price, on_resume=True,
    )  # fmt: skip
    skip_bad_lines: bool = flag_field("leave out lines of pairs without a tab, or with an empty side", default=False)
    plan: bool = flag_field(
        "print what the search would do and cost (with --resume: what is left, and what other caps would buy), and "
        "end: nothing is spent, no study written",
        default=False, stored=False, on_resume=True,
    )  # fmt: skip
    config: Path | None = flag_field(
        "settings from a YAML file, by the names of the flags, or from a study's study.json; a typed flag wins",
        default=None, **FILE, stored=False,
    )  # fmt: skip
    resume: Path | None = flag_field(
        "go on with the study in this folder, with its own settings", default=None, **FOLDER
    )

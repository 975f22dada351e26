"""Every wrong input ends with one clear line and exit code 2, of a plan too, and nothing is written."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tune import cli
from tune.errors import ROOT, UserError, check_not_hidden
from tune.recipe import StepPrices
from tune.settings import Settings

FILES = {
    "train.py": "def train(config): ...\ndef two(a, b): ...\ndef none(): ...\nasync def later(config): ...\n"
    "class Net: ...\ndef more(config, *, data): ...\ndef each(config):\n    for one in config: yield one\n",
    "broken.py": "def train(config:\n",
    "empty.py": "",
    "latin.py": b"# Se\xf1or\n",
    "hidden/tune.py": "",
    "hidden/train.py": "def train(config): ...\n",
    "space.toml": "width = [64, 128, 256]\nrate = { low = 1e-4, high = 1e-2, log = true }\n",
    "broken.toml": "width = [64, 128\n",
    "empty.toml": "",
    "latin.toml": b"word = ['Se\xf1or']\n",
    "odd.yaml": "width: 3\n",
    "switch.yaml": "oversubscribe: yes please\n",
    "twice.yaml": "seed: 1\nbudget: 1h\nseed: 2\n",
    "deep.yaml": "budget: 1h\nfix: {heads: 4, heads: 8}\n",
    "dashes.yaml": "budget: 1h\nreport-every: 1s\nreport_every: 2s\n",
    "trains.yaml": "train: ../a loop.py\nmetric: loss\n",
    "loads.yaml": "load: ../mine.py\nfamilies: mine\n",
    "out.yaml": "out: runs/one\nplan: false\n",
    "of_a_file.yaml": "config: out.yaml\n",
    "text.txt": "the cat sat on a mat\n" * 3_000,
    "pairs.tsv": "".join(f"we count {i}\tcontamos {i}\n" for i in range(1500)),
    "empty.tsv": "",
    "latin.tsv": "Señor\tSir\n".encode("latin-1"),
    "tabless.tsv": "Hello.\tHola.\n" * 300 + "no tab here\n",
    "few.tsv": "Hello.\tHola.\n",
}
LOOP = "--train ../train.py:train --space ../space.toml --metric loss"
WRONG = {
    "--budget": "--budget: expected one argument",
    "--budget 8": "--budget: '8' has no unit.*write 8h, 90m",
    "--budget -1h": "--budget: '-1h' is not a length of time.*write 8h",
    "--budget 0s": "--budget: '0s' is not above zero.*write 8h",
    "--families bert": "--families: 'bert' is no family.*translation or nanogpt",
    "--families translation=70,nanogpt": "--families: 'nanogpt' gives no share.*write translation=70",
    "--families nanogpt,nanogpt": "--families: 'nanogpt,nanogpt' names nanogpt twice",
    "--families translation=x,nanogpt=3": "--families: 'translation=x' gives no share",
    "--fix width=3": "--fix: 'width=3' names no dimension: there are d_model, heads, layers, dropout, precision",
    "--fix heads=3": "--fix: .*heads must divide d_model .* one of 4, 8, 16, 32",
    "--fix heads=many": "--fix: .* one of 4, 8, 16, 32",
    "--fix precision=fp8": "--fix: .* one of fp32, tf32, bf16, fp16",
    "--fix heads": "--fix: 'heads' gives no value",
    "--fix heads=4,heads=8": "--fix: 'heads=8' fixes heads a second time",
    "--fix=": "--fix: '' names no dimension",
    "--fix heads=4,": "--fix: '' names no dimension",
    "--fix heads=16,d_model=32": "--fix: 'heads=16,d_model=32' leaves no valid point.*fix d_model at 64",
    "--devices 0": "--devices: '0' is too few.*at least 1",
    "--devices two": "--devices: 'two' is not a whole number",
    "--deadline soon": "--deadline: 'soon' is not a length of time.*write 8h",
    "--trials-per-gpu 0": "--trials-per-gpu: '0' is too few: write 1 or more, or auto",
    "--cores-per-trial 0": "--cores-per-trial: '0' is too few: write 1 or more",
    "--vary heads": "--vary: 'heads' varies already: choose of learning_rate, batch_tokens, weight_decay",
    "--vary rate": "--vary: 'rate' is nothing of a recipe that may vary: choose of learning_rate",
    "--vary learning_rate,learning_rate": "--vary: .* names learning_rate twice",
    "--vary=": "--vary: '' is nothing of a recipe",
    "--vary context": "--vary: 'context' varies in nanogpt alone, and translation has rows of sentences: ",
    "--families nanogpt --vary context --rungs tokens": "--vary: 'context' makes steps of unequal tokens",
    "--set depth=3": "--set: 'depth=3' is nothing of a recipe: there are context.*write context=256",
    "--set context": "--set: 'context': context is a whole number from 8 to 8192: write context=256",
    "--set batch_tokens=0": "--set: 'batch_tokens=0': .*a whole number from 8 to 16777216: write batch_tokens=1536",
    "--set context=64.5": "--set: 'context=64.5': context is a whole number.*write context=256",
    "--set learning_rate=-1": "--set: 'learning_rate=-1': .*a number from 1e-06 to 10: write.*",
    "--set learning_rate=nan": "--set: 'learning_rate=nan': .*write learning_rate=1e-3",
    "--set context=64,context=32": "--set: 'context=32' sets context a second time.*keep one",
    "--set context=64,batch_tokens=32": "--set: 'batch_tokens=32': a step has.*write batch_tokens=64",
    "--seed -1": "--seed: '-1' is out of range.*write --seed 0",
    "--rungs epochs": "--rungs: 'epochs'.*seconds, tokens",
    "--search grid": "--search: 'grid'.*tpe, prior, random",
    "--out .": "--out: '.*' exists already.*name another",
    "--text-corpus=": "--text-corpus: '' is no path.*name a file",
    "--bugdet 8h": "unrecognized arguments: --bugdet.*--help lists the flags",
    "--skip": "unrecognized arguments: --skip.*--help lists the flags",
    "--resume nowhere": "--resume: '.*nowhere' has no study.json.*name a study's folder",
    "--budget 5s --families nanogpt": r"--budget: '5s' does not pay .* at least \d+s",
    "--translation-corpus ../none.tsv": r"--translation-corpus: .*none\.tsv",
    "--translation-corpus ../empty.tsv": "--translation-corpus: .*empty",
    "--translation-corpus ../latin.tsv": "--translation-corpus: .*UTF-8",
    "--translation-corpus ../tabless.tsv": "--translation-corpus: .*301",
    "--translation-corpus ../few.tsv": "--translation-corpus: .*fewer than",
    "--text-corpus ../none.txt": r"--text-corpus: .*none\.txt",
    "--text-corpus /dev/null": "--text-corpus: '/dev/null' cannot be read .it is neither file nor folder.: name a file",
    "--text-corpus ../latin.tsv": "--text-corpus: .*UTF-8",
    "--translation-corpus hub:opus-100": "--translation-corpus: .*names no dataset.* write hub:ID",
    "--translation-corpus hub:a/b:en-es": "--translation-corpus: 'hub:a/b:en-es' .*cannot be reach",
    "--text-corpus hub:a/b": "--text-corpus: 'hub:a/b' .*cannot be reached .*name a file",
    "--trials-per-gpu two": "--trials-per-gpu: 'two' is no number of trials: write 2, or auto",
    "--devices 300": "--devices: '300' .*--oversubscribe",
    "--address nowhere": "--address: 'nowhere' is no address",
    "--address 127.0.0.1:1": r"--address: '127\.0\.0\.1:1': no Ray cluster answers",
    "--address 127.0.0.1:1 --plan": "--plan: looks at this machine, .*'127.0.0.1:1': leave --address out; ",
    "--range d_model": "--range: 'd_model' is no dimension with its values: write NAME=LOW..HIGH",
    "--range d_model=": "--range: 'd_model' has the value ''",
    "--range d_model=128..64": "--range: 'd_model' goes from 128 to 64",
    "--range d_model=64,64": "--range: 'd_model' has the value 64 twice",
    "--range d_model=64..128.5": "--range: 'd_model' has 128.5: it takes whole numbers from 8 to 65536",
    "--range d_model=4,64": "--range: 'd_model' has 4: it takes whole numbers",
    "--range dropout=0..1": "--range: 'dropout' has 1: it takes numbers from 0.0 to 0.95",
    "--range layers=two,4": "--range: 'layers' has 'two': it takes whole numbers",
    "--range d_model=64-128": "--range: 'd_model' has '64-128': it takes whole numbers .*; write d_model=16..512",
    "--range precision=fp8": "--range: 'precision=fp8' is no precision: choose of fp32",
    "--vary learning_rate --range learning_rate=-1,1": "--range: 'learning_rate=-1': learning_rate is a number from",
    "--range width=64": "--range: 'width' is no dimension of translation or nanogpt: there are d_model",
    "--range weight_decay=0.1,0.2": "--range: 'weight_decay' is no dimension of .*: add --vary weight_decay",
    "--range heads=4 --fix heads=4": "--range: 'heads' is fixed too, by --fix",
    "--range heads=4 --range heads=8": "--range: 'heads=8' is of heads a second time",
    "--range heads=32 --range d_model=64": "--range: no configuration of translation is left: heads must divide",
    "--space ../space.toml": "--space: 'width' is no dimension of translation or nanogpt",
    "--at-most parameters=1k": "--at-most: 'parameters=1K' holds no translation",
    "--at-most 5M": "--at-most: '5M' is no bound: write parameters=5M",
    "--at-most parameters=0": "--at-most: 'parameters=0' is no bound",
    "--at-most parameters=9": "--at-most: 'parameters=9' holds no translation, of which the smallest has",
    "--at-most parameters=200K --range heads=64": "--at-most: 'parameters=200K' holds no translation of those that",
    "--budget 5m --deadline 10s": "--deadline: .10s. leaves no time for one trial: write at least 17s",
    "--budget 5m --deadline 30s --devices 1": "--deadline: .30s. leaves no time .* of each family: write at least 34s",
    "--budget 40s --cores-per-trial 8 --devices 8 --oversubscribe": "--budget: .40s. does not pay for one rung",
    "--first d_model": "--first: 'd_model' is no value of a dimension: write NAME=VALUE,NAME=VALUE",
    "--first [1]": "--first: '\\[1\\]' is no list of configurations: write NAME=VALUE,NAME=VALUE",
    "--first [": "--first: '\\[' is no list of configurations",
    "--first width=8": "--first: 'width' is no dimension: there are d_model",
    "--first d_model=100": "--first: 'd_model=100' is not in the space of translation: choose of 16, 32",
    "--first heads=32,d_model=64": "--first: .* is no configuration of translation: heads must divide",
    "--first heads=4,heads=8": "--first: 'heads=4,heads=8' has heads twice",
    "--load=": "--load: '' is no path: name a file",
    "--resume nowhere --mirror=": "--mirror: '' is no path: name a file",
    "--config ../none.yaml": "--config: '.*none.yaml' cannot be read",
    "--config ../space.toml": "--config: '.*space.toml' is no YAML|--config: '.*space.toml' has '",
    "--config ../text.txt": "--config: '.*text.txt' (has|is no YAML)",
    "--config ../odd.yaml": "--config: '.*odd.yaml' has 'width', which is no setting",
    "--config ../switch.yaml": "--config: '.*switch.yaml' has oversubscribe: 'yes please'",
    f"{LOOP} --range depth=4": "--range: 'depth' is no dimension of --space: there are width, rate",
    f"{LOOP} --first width=3": "--first: 'width=3' is not in the space: width is one of 64, 128, 256",
    f"{LOOP} --first rate=3": "--first: 'rate=3' is not in the space: rate is a number from 0.0001 to 0.01",
    f"{LOOP} --range width=64-128": "--range: 'width' has '64-128', .* no number: write a range as 64..256, or 64,256",
    f"{LOOP} --range width=64,wide": "--range: 'width' has 'wide', which is no number",
    f"{LOOP} --range rate=0.001,low": "--range: 'rate' has 'low', which is no number: write a range as 0.0001..0.01",
    f"{LOOP} --range width=64.5..128": "--range: 'width' has 64.5: it takes whole numbers",
    f"{LOOP} --range width=64,96.5": "--range: 'width' has 96.5: it takes whole numbers",
    f"{LOOP} --range rate=0..1": "--range: 'rate' goes from 0.0 by its logarithm: write a low above zero",
    f"{LOOP} --fix width=128": "--fix: 'width=128' is not for --train: write --range width=128$",
    "--config=": "--config: '' is no path: name a file or folder",
    "--config ../trains.yaml": "--config: '.*trains.yaml' has train: '../a loop.py', .*: add --train '../a loop.py'$",
    "--config ../out.yaml": "--config: '.*out.yaml' has out: 'runs/one', .*: add --out runs/one$",
    "--config ../of_a_file.yaml": "--config: '.*of_a_file.yaml' has 'config', which is no setting: --help lists",
    "--config ../loads.yaml": "--config: '.*loads.yaml' has load: '../mine.py', .*: add --load ../mine.py$",
    f"{LOOP} --at-most parameters=5M": "--at-most: is not for --train: leave it out$",
    f"{LOOP} --train ../none.py:train": r"--train: '.*none\.py' cannot be read \(No such file",
    f"{LOOP} --train ..": r"--train: '.*' cannot be read \(Is a directory\)",
    f"{LOOP} --train ../latin.py": r"--train: '.*latin\.py' cannot be read \(it is not UTF-8\)",
    f"{LOOP} --train ../broken.py:train": r"--train: '.*broken\.py' is no Python \(.*, line 1\): correct it",
    f"{LOOP} --train ../empty.py": r"--train: '.*empty\.py' is empty",
    f"{LOOP} --train ../train.py:trian": "--train: '.*' has no function 'trian': there is train, two, none, more, each",
    f"{LOOP} --train ../train.py:two": "--train: 'two' needs 2 arguments",
    f"{LOOP} --train ../train.py:none": "--train: 'none' takes no argument",
    f"{LOOP} --train ../train.py:more": "--train: 'more' needs 2 arguments",
    f"{LOOP} --train ../train.py:later": "--train: 'later' in '.*' is async",
    f"{LOOP} --train ../train.py:Net": "--train: 'Net' in '.*' is a class",
    f"{LOOP} --train ../train.py:each": "--train: 'each' in '.*' is a generator: name a function that calls report",
    f"{LOOP} --train ../hidden/train.py:train": r"tune: '.*hidden/tune\.py' hides the `tune` .* rename it",
    f"{LOOP} --space ../none.toml": r"--space: '.*none\.toml' cannot be read \(No such file",
    f"{LOOP} --space ~nobody.s/none.toml": r"--space: '~nobody\.s/none\.toml' cannot be read \(No such file",
    f"{LOOP} --space ../broken.toml": r"--space: '.*broken\.toml' is no TOML \(Unclosed array",
    f"{LOOP} --space ../empty.toml": r"--space: '\.\./empty\.toml' has no dimension: write one or more",
    f"{LOOP} --space ../latin.toml": r"--space: '.*latin\.toml' is not UTF-8",
    "--train ../train.py:train --metric loss": "--space: missing: --train needs what varies",
    "--train ../train.py:train --space ../space.toml": "--metric: missing: say what --train reports; write --metric l",
    "--train ../train.py:train --space ../space.toml --maximize step": "--maximize: 'step' is no name of a metric",
    f"{LOOP} --maximize accuracy": "--metric: 'loss' is to be small and 'accuracy', by --maximize, large: leave",
    f"{LOOP} --metric ' '": "--metric: ' ' is no name of a metric",
    f"{LOOP} --metric width": "--metric: 'width' is a dimension of --space too",
    "--metric loss": "--metric: works only with --train FILE$",
    f"{LOOP} --life 0": "--life: '0' is too few",
    f"{LOOP} --life many": "--life: 'many' is not a whole number",
    f"{LOOP} --life 500epochs": "--life: '500epochs' is not a whole number of steps, .*: write it without a unit",
    f"{LOOP} --families nanogpt": "--families: 'nanogpt=100': --train is in their place",
    f"{LOOP} --families translation,nanogpt": "--families: 'translation=50,nanogpt=50': --train is in",
    f"{LOOP} --fix a=1,b=2": "--fix: 'a=1,b=2' is not for --train: write --range a=1 --range b=2$",
    f"{LOOP} --text-corpus builtin": "--text-corpus: is not for --train",
    f"{LOOP} --objective front": "--objective: is not for --train",
    f"{LOOP} --budget 5s": "--budget: '5s' does not pay for one rung of one trial: write at least 17s",
    f"{LOOP} --devices 300": "--devices: '300' is more than",
    f"{LOOP} --trials-per-gpu auto": "--trials-per-gpu: 'auto': what a loop of yours takes of a GPU is not known",
    f"{LOOP} --plan": "--plan: is not for --train",
}

REPEAT = "--range", "--first"


def once(typed: str) -> list[str]:
    """Each flag as it is typed last, but for those that repeat."""
    flags: list[list[str]] = []
    for word in shlex.split(typed):
        flags += [[word]] if word.startswith("--") else []
        flags[-1] += [] if word.startswith("--") else [word]
    last = {words[0].partition("=")[0]: words for words in flags}
    return [word for words in flags if words[0] in REPEAT or words in last.values() for word in words]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str, str], None]:
    """refused(flags, said): they are, by one line that begins so, in an empty folder with FILES above it."""
    monkeypatch.setattr("tune.search_context.measured_prices", lambda *_: (StepPrices(flops=2e10), 1.0))
    for name, text in FILES.items():
        (file := tmp_path / name).parent.mkdir(exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def check(flags: str, said: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        assert cli.main(Settings, once(flags)) == 2
        out, error = capfd.readouterr()
        assert out == "" and error.count("\n") == 1 and re.match(said, error), error
        assert sorted(tmp_path.rglob("*")) == before

    return check


@pytest.mark.parametrize("flags", WRONG)
def test_what_cannot_be_asked_for(flags: str, refused: Callable[[str, str], None]) -> None:
    texts = "" if "--train" in flags else "--text-corpus ../text.txt --translation-corpus ../pairs.tsv "
    refused(f"--budget 1h {texts}{flags}", WRONG[flags])
    if not {"--train", "--address"} & {*flags.split()}:
        refused(f"--plan --budget 1h {texts}{flags}", WRONG[flags])


@pytest.mark.parametrize("flags", ["--text-corpus ../text.txt --families nanogpt", LOOP])
@pytest.mark.parametrize("theirs", ["here/tune.py", "here/tune/__init__.py", "site/tune/__init__.py"])
def test_another_tune_that_a_worker_would_import(
    flags: str, theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[str, str], None]
) -> None:
    """Ray has the working folder first on its workers' path. Nobody's file is executed."""
    (file := tmp_path / theirs).parent.mkdir(parents=True, exist_ok=True)
    file.write_text("raise RuntimeError")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}")
    for plan in ("",) if flags == LOOP else ("", "--plan"):
        refused(f"--budget 1h {flags} {plan}", f"tune: '{file}' hides the `tune` that is Ration's: ")


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tune").mkdir()
    monkeypatch.chdir(tmp_path)
    check_not_hidden("tune", "")


def test_another_copy_of_ration_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a clone beside the one that is installed."""
    (tmp_path / "tune" / "store").mkdir(parents=True)
    for file in ("__init__.py", "store/journal.py"):
        (tmp_path / "tune" / file).touch()
    monkeypatch.chdir(tmp_path)
    check_not_hidden("tune", "")


def test_an_interpreter_without_the_packages_is_told_of_in_a_line() -> None:
    command = [sys.executable, "-I", "-S", "tune/run.py", "--budget", "1h"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert re.match(r"\w+: not installed for .*pip install -r requirements.txt", done.stderr)


def test_nothing_asked_for(refused: Callable[[str, str], None]) -> None:
    refused("", "--budget: missing.*write --budget 8h")


TWICE = {
    "--budget 1h --budget 2h": "--budget: typed twice: keep one",
    "--budget 1h --set context=64 --set batch_tokens=512": "--set: typed twice: write both in one, with a comma",
    "--budget 1h --families nanogpt --families=translation": "--families: typed twice: write both in one",
    "--config twice.yaml": "--config: '.*twice.yaml' has seed twice: keep one",
    "--config deep.yaml": "--config: '.*deep.yaml' has heads twice: keep one",
    "--config dashes.yaml": "--config: '.*dashes.yaml' has report_every twice: keep one",
}


@pytest.mark.parametrize("flags", TWICE)
def test_what_is_said_twice(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (name for name in FILES if name in flags):
        (tmp_path / name).write_text(str(FILES[name]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{TWICE[flags]}"):
        cli.parse(Settings, flags.split())


SPACES = {
    "width = 64": r"'width' has 64: write a list of values, or",
    "width = []": r"'width' has \[\] for its values",
    "width = [64, 64]": r"'width' has the value 64 twice",
    f"width = [1, {9**400}]": r"'width' has the value \d+: write finite numbers",
    "width = {low = -1e308, high = 1e308}": r"'width' has low = -1e\+308: write a finite number",
    "width = {low = 0.0, high = 1e99, step = 1e-300}": r"'width' has inf steps: write a larger step",
    "width = [[1, 2]]": r"'width' has the value \[1, 2\]: write finite numbers",
    "width = [nan]": r"'width' has the value nan",
    "width = ['']": r"'width' has the value ''",
    "width = { low = 1 }": r"'width' has no high: write both ends",
    "width = { high = 1 }": r"'width' has no low: write both ends",
    "width = { low = 2, high = 1 }": r"'width' goes from 2 to 1: write a low below its high",
    "width = { low = 0, high = 1, log = true }": r"'width' goes from 0 by its logarithm: write a low above zero",
    "width = { low = 1, high = inf }": r"'width' has high = inf",
    "width = { low = 1, high = 2, log = 1 }": r"'width' has log = 1: write true or false",
    "width = { low = 0.0, high = 1.0, step = 0.0 }": r"'width' has a step of 0.0",
    "width = { low = 0, high = 1, step = 5.0 }": r"'width' has a step of 5.0, which goes beyond 1 at once: write a sm",
    "width = { low = 0.0, high = 1.0, step = 1e-9 }": r"'width' has 1,000,000,000 steps",
    "width = { min = 1, max = 2 }": r"'width' has 'min': a dimension has values, low, high",
    "width = { values = [1], low = 1, high = 2 }": r"'width' has both a list and a range",
    "width = { when = { a = 1 } }": r"'width' has neither list nor range",
    "width = { values = [1], when = 3 }": r"'width' has 3 for `when`",
    "width = { values = [1], when = { other = 1 } }": r"'width' depends on 'other', which is no dimension before it",
    "a = [1]\nwidth = { values = [1], when = { a = 2 } }": r"'width' depends on a = 2, which that never has",
    "a = { low = 1, high = 3 }\nwidth = { values = [1], when = { a = 2 } }": r"'width' depends on 'a', which is a ra",
    "'a b' = [1]": r"'a b' is no name for a dimension",
}


@pytest.mark.parametrize("text", SPACES)
def test_a_space_that_cannot_be(text: str, refused: Callable[[str, str], None]) -> None:
    Path("../bad.toml").write_text(text)
    refused(f"--budget 1h {LOOP} --space ../bad.toml", f"--space: {SPACES[text]}")

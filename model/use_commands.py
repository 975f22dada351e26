"""The commands behind translate.py and generate.py: their flags, and what they print."""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from model import use
from model.checkpoint import load_model
from model.tokenizer import Tokenizer
from tune.errors import UserError, called
from tune.load import load

TOKENS = 500
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, the order of writing included; a new line and a tab may."""


def translate(arguments: list[str]) -> None:
    """Print a translation a line. UserError for a folder or flag that does not serve."""
    made = _parser("translate", "Translate sentences with a study's best translation model.", "best-translation")
    made.add_argument("sentences", nargs="*", metavar="SENTENCE", help="(default: one a line of standard input)")
    made.add_argument("--beam", type=int, default=use.BEAM_WIDTH, help="texts kept at a time (default: %(default)s)")
    flags = made.parse_args(arguments)
    if flags.beam < 1:
        raise UserError(f"--beam: {flags.beam}: at least one text is kept; write 1 for greedy decoding")
    model, tokenizer = _opened(flags)
    sentences = flags.sentences or [line.strip() for line in sys.stdin]
    for text in use.translations(model, tokenizer, sentences, width=flags.beam):
        _print(text)


def generate(arguments: list[str]) -> None:
    """Print a prompt and how it goes on. UserError for a folder or flag that does not serve."""
    made = _parser("generate", "Go on with a text by a study's best nanoGPT.", "best-nanogpt")
    made.add_argument("--prompt", default="\n", help="what to go on from (default: a new line)")
    made.add_argument("--tokens", type=int, default=TOKENS, help="how many (default: %(default)s)")
    made.add_argument(
        "--temperature", type=float, default=use.TEMPERATURE, help="0 takes the likeliest (default: %(default)s)"
    )
    made.add_argument("--top-k", type=int, default=use.TOP_K, help="draw among these (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    flags = made.parse_args(arguments)
    for name, least in (("tokens", 1), ("temperature", 0), ("top_k", 1)):
        if not getattr(flags, name) >= least:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: {getattr(flags, name)}: at least {least}; leave it out for the default")
    torch.set_num_threads(1)  # a token is too little work to share: on a busy machine its threads wait for each other
    model, tokenizer = _opened(flags)
    text = use.continuation(
        model, tokenizer, flags.prompt, flags.tokens,
        temperature=flags.temperature, top_k=flags.top_k, seed=flags.seed,
    )  # fmt: skip
    _print(flags.prompt + text)


def run(command: Callable[[list[str]], None]) -> int:
    """0; 2 for input that the user can put right, with one line that says how."""
    try:
        command(sys.argv[1:])
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _print(text: str) -> None:
    """A line; on a terminal what a model wrote may not steer it, so that control characters are shown as escapes."""
    if sys.stdout.isatty():
        text = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    print(text)


def _parser(entry: str, summary: str, folder: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=called(f"model/{entry}.py"), description=summary)
    made.add_argument("folder", type=Path, metavar=f"runs/STUDY/{folder}", help="the model, as a search left it")
    made.add_argument("--load", type=Path, metavar="FILE", help="the Python file that registers its family, if need be")
    return made


def _opened(flags: argparse.Namespace) -> tuple[nn.Module, Tokenizer]:
    if flags.load is not None:
        load(flags.load.absolute())
    return load_model(flags.folder)

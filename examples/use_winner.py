"""Use a winner: python examples/use_winner.py runs/STUDY/best-translation "How are you?" """

import sys
from pathlib import Path

from model.inference import translations
from model.training.checkpoint import load_model
from tune.errors import UserError

if __name__ == "__main__":
    try:
        model, tokenizer = load_model(Path(sys.argv[1]))
        print(*translations(model, tokenizer, sys.argv[2:]), sep="\n")
    except UserError as error:  # such as a folder without a model, or one that does not translate
        sys.exit(str(error))

"""Use a winner: python examples/use_winner.py runs/STUDY/best-translation "How are you?" """

import sys
from pathlib import Path

from model.inference import translations
from model.training.checkpoint import load_model
from tune.errors import UserError

if __name__ == "__main__":
    folder, *sentences = sys.argv[1:] or sys.exit(__doc__)
    try:
        model, tokenizer = load_model(Path(folder))
        print(*translations(model, tokenizer, sentences), sep="\n")
    except UserError as error:  # such as a folder without a model, or one that does not translate
        sys.exit(str(error))

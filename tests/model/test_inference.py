"""What stands beside what a winner writes is from the validation split, whole and in its order."""

from pathlib import Path

import torch
from torch import nn

from model.config import Config, build_model
from model.data.dataset import PairData, TextData
from model.data.tokenizer import Tokenizer
from model.inference import SAMPLE_TOKENS, samples
from model.training.checkpoint import config_state, export, load_model, save


def exported(folder: Path, config: Config, tokenizer: str) -> tuple[nn.Module, Tokenizer]:
    """An untrained model as a winner is kept and read."""
    read = Tokenizer.from_json(tokenizer)
    model = build_model(config, vocabulary=read.vocabulary, pad=read.pad or 0)
    state = {"steps": 1, "config": config_state(config)}
    saved = save(folder / "trial", model, {"step": torch.zeros(1)}, state)
    return load_model(export(saved, folder / "best", tokenizer))


def test_a_text_goes_on_where_its_prompt_ends(tmp_path: Path, small_text: Config, text_data: TextData) -> None:
    valid = Tokenizer.from_json(text_data.tokenizer).decode(text_data.valid.tolist())
    found = list(samples(*exported(tmp_path, small_text, text_data.tokenizer), text_data, 3))
    assert len(found) == 3 and valid.startswith(found[0]["input"])
    assert all(row["input"] + row["reference"] in valid and len(row["output"]) == SAMPLE_TOKENS for row in found)


def test_a_translation_has_its_source_and_its_reference(
    tmp_path: Path, small_pairs: Config, pair_data: PairData
) -> None:
    tokenizer = Tokenizer.from_json(pair_data.tokenizer)
    found = list(samples(*exported(tmp_path, small_pairs, pair_data.tokenizer), pair_data, 2))
    for row, pair in zip(found, (0, len(pair_data.valid) - 1), strict=True):
        for name, side in (("input", pair_data.valid.source), ("reference", pair_data.valid.target)):
            ids = side.tokens[side.offsets[pair] : side.offsets[pair + 1]].tolist()
            text = tokenizer.decode([token for token in ids if token not in (pair_data.bos, pair_data.eos)])
            assert row[name] == text

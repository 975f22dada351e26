"""A training loop of your own under a cap: its model, its data, its optimizer; five lines of it are Ration's.

    python examples/own_loop.py                  # alone it trains as usual, with the defaults below
    python tune/run.py --budget 10m --train examples/own_loop.py --space examples/own_loop.toml --metric loss

It learns to write Python, letter by letter, from the source of Python's own `argparse`. Run as a script, it asks for
its configuration; `--train examples/own_loop.py:train` gives it to the function. `--life 2000` is its length in steps.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import tune.loop as ration

STEPS = 2000


class Net(nn.Module):
    def __init__(self, letters, cell, width, layers, dropout):
        super().__init__()
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        self.embed, self.out = nn.Embedding(letters, width), nn.Linear(width, letters)
        self.cell = kind(width, width, layers, dropout=dropout, batch_first=True)

    def loss(self, rows):
        return F.cross_entropy(self.out(self.cell(self.embed(rows[:, :-1]))[0]).flatten(0, 1), rows[:, 1:].flatten())


def train(config):
    text = Path(argparse.__file__).read_text()
    letters = sorted(set(text))
    rows = torch.tensor([letters.index(letter) for letter in text]).unfold(0, 65, 64)
    learned, valid = rows[: len(rows) * 9 // 10], rows[len(rows) * 9 // 10 :]
    torch.manual_seed(0)
    net = Net(len(letters), config["cell"], config["width"], config["layers"], config.get("dropout", 0.0))
    optimizer, step = torch.optim.Adam(net.parameters(), config["rate"]), 0

    if (saved := ration.checkpoint()) is not None:
        state = torch.load(saved / "state.pt")
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        step = state["step"]

    def save(folder):
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        torch.save({**state, "step": step}, folder / "state.pt")

    while step < STEPS and not ration.done():
        net.train()
        for _ in range(50):
            optimizer.zero_grad()
            net.loss(learned[torch.randint(len(learned), (16,))]).backward()
            optimizer.step()
            step += 1
        net.eval()
        with torch.no_grad():
            loss = net.loss(valid).item()
        print(f"step {step}: {loss:.3f} nats a letter")
        ration.report(loss=loss, weights=sum(each.numel() for each in net.parameters()), step=step, save=save)


if __name__ == "__main__":
    train(ration.config(cell="lstm", width=64, layers=1, dropout=0.0, rate=3e-3))

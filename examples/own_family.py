"""A family of your own models: what may vary, and how to build a model, its batches and its loss.

    python examples/own_family.py # a search of it alone, for two device-hours
    python tune/run.py --budget 2h --load examples/own_family.py --families lstm

It learns the text of --text-corpus. Copy it, and write your own model where it says LSTM.
"""

import torch
from torch import nn
from torch.nn import functional as F

from model.families import Batch, Family
from tune.registry import register
from tune.settings import Settings
from tune.study import search


class Net(nn.Module):
    def __init__(self, vocabulary, width, layers, dropout):
        super().__init__()
        self.embed, self.out = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


@register("lstm")
class LSTM(Family):
    space = {"width": (32, 64, 128, 256), "layers": (1, 2, 3), "dropout": (0.0, 0.1, 0.2)}

    def build(self, config, vocabulary, pad):
        return Net(vocabulary, config.own["width"], config.layers, config.dropout)

    def batches(self, config, data, split):  # split: train, valid or test; training takes them in a new order each time
        tokens = torch.from_numpy(getattr(data, split).astype("int64"))
        rows = tokens.unfold(0, config.context + 1, config.context).split(config.batch_tokens // config.context)
        return [Batch(inputs=(x[:, :-1],), targets=x[:, 1:], tokens=x[:, 1:].numel()) for x in rows]

    def loss(self, model, inputs, targets):  # nats a target token
        return F.cross_entropy(model(*inputs).flatten(0, 1), targets.flatten())


if __name__ == "__main__":
    print(search(Settings(budget="2h", families="lstm")))

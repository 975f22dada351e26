"""Images: a small ResNet (He et al. 2016, arXiv:1512.03385) on CIFAR-10 (Krizhevsky 2009), or on made-up images.

python tune/experiment.py batch_size --budget 30m --load examples/classifier.py --families classifier

CIFAR-10: --own-corpus hub:uoft-cs/cifar10, or a binary FILE. Experiments loader and scaling too; tune/run.py searches.
"""

import io
from itertools import pairwise

import numpy as np
import torch
from PIL import Image  # pip install pillow
from torch import nn
from torch.nn import functional as F

from model.data.batches import EndlessBatches, drawn
from model.data.dataset import OwnData
from model.data.resident import resident
from model.families import Batch, Family
from tune.registry import register

SIZE, CLASSES, PADDING, PLACES, FILES = 32, 10, 4, 9, 4_096
RECORD = np.dtype([("label", "u1"), ("pixels", "u1", (3, SIZE, SIZE))])  # as in the binary files of CIFAR-10
MADE_UP, CONTRAST, NOISE = {"train": 10_000, "valid": 1_000, "test": 1_000}, 48, 60


def made_up(count, seed):
    """Make up images: of each class a mosaic of its own tints, with noise."""
    tints = np.random.default_rng(0).integers(-CONTRAST, CONTRAST, size=(CLASSES, 3, 4, 4))
    generator, made = np.random.default_rng(seed), np.empty(count, RECORD)
    made["label"] = generator.integers(CLASSES, size=count)
    noise = generator.integers(-NOISE, NOISE, size=made["pixels"].shape, dtype=np.int16)
    made["pixels"] = 128 + np.kron(tints, np.ones((1, 1, SIZE // 4, SIZE // 4), np.int16))[made["label"]] + noise
    return made


def of_hub(rows):
    """Return the records of a split of the hub, from its column of images and that of classes."""
    columns, made = {type(kind).__name__: name for name, kind in rows.features.items()}, np.empty(len(rows), RECORD)
    for place, row in enumerate(rows):
        image = row[columns["Image"]].convert("RGB").resize((SIZE, SIZE))
        made[place] = row[columns["ClassLabel"]], np.asarray(image).transpose(2, 0, 1)
    return made


def cut(pixels, chosen):
    """Return crops of images (B, 3, S, S) with a black rim, half of them mirrored, as the numbers (B,) below 2 PLACES^2
    say."""
    reach, images = torch.arange(SIZE, device=pixels.device), torch.arange(len(pixels), device=pixels.device)
    across = torch.where(chosen[:, None] % 2 == 1, reach.flip(0), reach) + chosen[:, None] // 2 % PLACES
    rim, down = F.pad(pixels, [PADDING] * 4), chosen[:, None] // (2 * PLACES) + reach
    return rim[images[:, None, None], :, down[:, :, None], across[:, None]].permute(0, 3, 1, 2)


class Cuts:
    """BatchSource of EndlessBatches: the numbers and crops of an epoch's images are drawn beforehand."""

    def __init__(self, rows, count, device):
        self.pixels, self.labels, self.count = resident(rows["pixels"], device), resident(rows["label"], device), count

    def plan(self, generator):
        order = drawn(len(self.labels), self.count, generator)
        return np.stack([order, generator.integers(2 * PLACES**2, size=order.shape)], axis=-1)

    def batch(self, row, there):
        numbers, chosen = there.unbind(1)
        return Batch((cut(self.pixels[numbers], chosen),), self.labels[numbers].long(), len(row))


class Files(torch.utils.data.Dataset):
    """Images as files, which the processes of a DataLoader decode and crop one by one."""

    def __init__(self, rows, seed):
        self.labels, self.seed, self.files = rows["label"].astype("int64"), seed, [io.BytesIO() for _ in rows]
        for file, pixels in zip(self.files, rows["pixels"], strict=True):
            Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        pixels = torch.from_numpy(np.array(Image.open(self.files[number]))).permute(2, 0, 1)
        chosen = torch.from_numpy(np.random.default_rng([self.seed, number]).integers(2 * PLACES**2, size=1))
        return Batch((cut(pixels[None], chosen),), torch.from_numpy(self.labels[number : number + 1]), 1)


class Block(nn.Module):
    """Residual block with GroupNorm for BatchNorm: parts of a batch, on one device or on several, add up to the
    whole."""

    def __init__(self, narrow, wide):
        super().__init__()
        stride = 1 + (wide == 2 * narrow)
        first, second = nn.Conv2d(narrow, wide, 3, stride, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.inside = nn.Sequential(first, nn.GroupNorm(8, wide), nn.ReLU(), second, nn.GroupNorm(8, wide))
        self.past = nn.Identity() if narrow == wide else nn.Conv2d(narrow, wide, 1, stride)

    def forward(self, x):
        return F.relu(self.inside(x) + self.past(x))


class ResNet(nn.Sequential):
    def __init__(self, classes, width, blocks):
        widths = [3, *(width << depth for depth in range(3) for _ in range(blocks))]
        out = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)
        super().__init__(*(Block(*each) for each in pairwise(widths)), *out)

    def forward(self, images):  # (B, 3, S, S) bytes -> (B, classes)
        return super().forward(images.float() / 64 - 2)


@register("classifier")
class Classifier(Family):
    corpus = "images"
    space = {"width": (8, 16, 32, 64), "blocks": (1, 2, 3), "learning_rate": (5e-4, 1e-3, 2e-3, 4e-3)}
    recipe = {"batch_tokens": 128, "weight_decay": 0.05}

    def read(self, source):
        if source is None:
            return OwnData(vocabulary=CLASSES, **{p: made_up(n, seed) for seed, (p, n) in enumerate(MADE_UP.items())})
        files = {} if isinstance(source, dict) else {"train": np.frombuffer(source.read_bytes(), RECORD).copy()}
        splits = files or {part: of_hub(rows) for part, rows in source.items()}
        for part in sorted({"valid", "test"} - set(splits)):
            splits["train"], splits[part] = np.split(splits["train"], [len(splits["train"]) * 19 // 20])
        return OwnData(vocabulary=1 + int(splits["train"]["label"].max()), **splits)

    def build(self, config, vocabulary, pad):
        return ResNet(vocabulary, config.own["width"], config.own["blocks"])

    def batches(self, config, data, split):
        parts = (resident(getattr(data, split)[name], "cpu").split(config.batch_tokens) for name in RECORD.names)
        return [Batch((pixels,), labels.long(), len(labels)) for labels, pixels in zip(*parts, strict=True)]

    def training_batches(self, config, data, device):
        return EndlessBatches(Cuts(data.train, config.batch_tokens, device), config.seed, device)

    def items(self, config, data):
        return Files(data.train[:FILES], config.seed)

    def loss(self, model, inputs, targets):
        return F.cross_entropy(model(*inputs), targets)

    def sums(self, model, batch):
        found = model(*batch.inputs)
        return F.cross_entropy(found, batch.targets, reduction="sum"), (found.argmax(1) == batch.targets).sum()

    def flops_per_token(self, config, data):  # a stage twice as wide has a quarter of the pixels
        return 6 * (3 * 18 * config.own["blocks"] - 17) * (config.own["width"] * SIZE) ** 2

    def memory_estimate(self, config, data, *, micro_batches, device):
        net = super().memory_estimate(config, data, micro_batches=micro_batches, device=device)
        return net - 42 * config.own["blocks"] * config.own["width"] * SIZE**2 * (-config.batch_tokens // micro_batches)

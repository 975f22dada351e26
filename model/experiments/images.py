"""Images as an image classifier's training set has them, made up: small JPEGs that are decoded and cut on the way.

# Shapes: B batch.
"""

import io
import itertools

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

SIZE, CHANNELS, CLASSES = 32, 3, 10    # CIFAR-10's (Krizhevsky 2009)
PADDING = 4
QUALITY = 90    # of the JPEG


class Images(Dataset[tuple[Tensor, Tensor]]):
    """`count` images, each decoded when it is asked for, cut at random from a padded one, mirrored or not, normalised.

    What is drawn for an image follows from the seed and its number, whichever process asks. Item: (3, 32, 32) fp32 and
    its class, int64.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._seed = seed
        generator = np.random.default_rng(seed)
        self._classes = generator.integers(CLASSES, size=count)
        tints = generator.integers(64, 192, size=(CLASSES, 8, 8, CHANNELS))
        self._files = [_jpeg(tints[each], generator) for each in self._classes]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        pixels = np.asarray(Image.open(io.BytesIO(self._files[number])).convert("RGB"))
        padded = np.pad(pixels, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        generator = np.random.default_rng([self._seed, number])
        top, left = generator.integers(2 * PADDING + 1, size=2)
        cut = padded[top:top + SIZE, left:left + SIZE]
        if generator.random() < 0.5:
            cut = cut[:, ::-1]
        image = torch.from_numpy(cut.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1)
        return image, torch.tensor(self._classes[number])


def _jpeg(tint: np.ndarray, generator: np.random.Generator) -> bytes:
    """An image of a class's colours with noise."""
    colors = Image.fromarray(tint.astype(np.uint8)).resize((SIZE, SIZE))
    noisy = np.asarray(colors) + generator.normal(scale=20, size=(SIZE, SIZE, CHANNELS))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


class Classifier(nn.Sequential):
    """Three convolutions, small enough that a CPU core takes tens of milliseconds a batch."""

    def __init__(self) -> None:
        widths = (CHANNELS, 16, 32, 64)
        blocks = [
            nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2))
            for narrow, wide in itertools.pairwise(widths)
        ]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(widths[-1] * (SIZE // 8) ** 2, CLASSES))

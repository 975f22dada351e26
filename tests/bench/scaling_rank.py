"""Entry: a rank under torchrun, which names the place of the others; ADDRESS DATA NAME."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch.distributed as dist

from tests.bench.scaling import serve

if __name__ == "__main__":
    dist.init_process_group("gloo")
    serve(dict(zip(("address", "data", "name"), sys.argv[1:], strict=True)))
    dist.destroy_process_group()

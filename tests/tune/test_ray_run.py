"""The Ray that a search starts: its own, and closed to whoever has no token."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import ray

from tune.ray_run import local_ray

JOIN = "import sys, ray; ray.init(address=sys.argv[1], logging_level=50); print(ray.cluster_resources()['CPU'])"


def join(address: str, **token: str) -> subprocess.CompletedProcess[str]:
    """What a process says that knows the address, and has this token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")} | token
    return subprocess.run(
        [sys.executable, "-c", JOIN, address], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_ray(slots=1, gpus=0):
        yield ray.get_runtime_context().gcs_address


def test_who_has_the_token_may_join(address: str) -> None:
    """Or the refusals below would prove nothing."""
    joined = join(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=os.environ["RAY_AUTH_TOKEN"])
    assert joined.stdout == "1.0\n", joined.stderr


@pytest.mark.parametrize(("mode", "token"), [("disabled", ""), ("token", "0" * 64)])
def test_a_stranger_is_refused(address: str, mode: str, token: str) -> None:
    refused = join(address, RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN=token)
    assert refused.returncode != 0 and refused.stdout == ""
    assert "auth" in refused.stderr.lower()


def test_a_mode_set_outside_does_not_open_it() -> None:
    told = "import os, tune; print(os.environ['RAY_AUTH_MODE'])"
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    said = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "token\n"

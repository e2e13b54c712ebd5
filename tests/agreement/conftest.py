"""The clouds of the local cloud's own suite, for what is compared with the product, and the engine with this checkout's language host."""

import re
import sys
from pathlib import Path

import pytest

from localcloud.tests.conftest import client, own_client, own_cloud, shared_cloud

__all__ = ["client", "own_client", "own_cloud", "shared_cloud"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pulumi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `pulumi` with the language host of this checkout, also where several checkouts share one environment."""
    link = Path(sys.executable).with_name("pulumi")
    if not link.exists():
        pytest.skip("`make setup` puts the engine beside the interpreter")
    command = tmp_path_factory.mktemp("engine") / "pulumi"
    command.write_text(re.sub(r'GEMMA_SERVING_ROOT="[^"]*"', f'GEMMA_SERVING_ROOT="{ROOT}/dev"', link.read_text()))
    command.chmod(0o755)
    return command

"""A desk at which a person tears stacks down: a cloud with three zones, a folder with settings, no engine, and the command."""

import io
import json
import re
import socket
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import NO_LIMITS
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.teardown import removal
from gemma_serving.scripts.teardown.__main__ import COMMAND
from localcloud.world.scenario import OperationDurations, Scenario, Tpu
from tests.cloud.populated import PROJECT, open_world, owner
from tests.scripts.terminal import Terminal

STACK = "x"
ROOT = Path(__file__).resolve().parents[3]
ZONES = ("us-east5-a", "us-east5-b", "asia-northeast1-b")
"""Each zone more is five lists more in each search."""
SCENARIO = Scenario(
    operations=OperationDurations(instant=True), tpu=Tpu(zones={zone: Tpu().zones[zone] for zone in ZONES})
)


def missing():
    raise CommandRefusedError("The Pulumi CLI is not installed. Run `make setup`.")


class Desk:
    """A folder with settings, a local backend, no engine, and the command."""

    def __init__(self, world, folder, monkeypatch, capsys):
        self.world, self.folder, self.monkeypatch, self.capsys = world, folder, monkeypatch, capsys
        self.backend = folder / "backend" / ".pulumi"
        (folder / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
        settings = (ROOT / "Pulumi.tpu-v6e4.yaml").read_text()
        (folder / f"Pulumi.{STACK}.yaml").write_text(re.sub(r"zones: \[.*\]", f"zones: [{', '.join(ZONES)}]", settings))
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{folder / 'backend'}")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        monkeypatch.setattr(runner, "pulumi", missing)
        self.answer(*["yes"] * 9)  # no state here names what a test makes

    def state(self, latest):
        path = self.backend / "stacks" / "gemma-serving" / f"{STACK}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))

    def lock(self, pid):
        path = self.backend / "locks" / "organization" / "gemma-serving" / STACK / "a.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        since = datetime.now(UTC).isoformat()
        path.write_text(
            json.dumps({"pid": pid, "hostname": socket.gethostname(), "username": "me", "timestamp": since})
        )
        return path

    def machine(self, stack=STACK, limits=NO_LIMITS):
        """Make only what counts as a stack's machine: with its account, so that its use is known."""
        self.world.account(f"gemma-{stack}", owner(stack).description)
        self.world.queued(f"gemma-{stack}", {**owner(stack).labels, **limits.labels})

    def leave(self):
        """Have no terminal, as a scheduled run."""
        self.monkeypatch.setattr("sys.stdin", io.StringIO())

    def answer(self, *answers):
        """Sit at a terminal and answer the questions."""
        self.monkeypatch.setattr("sys.stdin", Terminal("".join(f"{answer}\n" for answer in answers)))

    def sleeps(self, sleep, **clock):
        """Replace the waits of each teardown, and their clock."""
        clock = WaitClock(sleep=sleep, **clock)
        self.monkeypatch.setattr(removal, "Teardown", partial(removal.Teardown, clock=clock))

    def run(self, *words, stack=STACK):
        chosen = ["--stack", stack] if stack else ["--all"]
        self.capsys.readouterr()
        code = run_command(COMMAND, [*chosen, "--json", *words])
        printed = self.capsys.readouterr()
        document = json.loads(printed.out) if printed.out else {}
        return code, None if "error" in document else document or None, printed.err


@pytest.fixture
def desk(tmp_path, capsys):
    with open_world(SCENARIO) as world, pytest.MonkeyPatch.context() as patch:
        yield Desk(world, tmp_path, patch, capsys)

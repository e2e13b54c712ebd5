"""Over drawn histories each command agrees with the cloud about what exists and what it costs, or says that it does not know.

`gemma` without words does not ask Google: it answers as of the last `up`. It is compared only if nothing happened since, and must never leave out a
stack that may have a server.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NoReturn

import pytest

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.scripts.bench import measuring
from gemma_serving.scripts.bench.__main__ import COMMAND as BENCH
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.connect import __main__ as connecting
from gemma_serving.scripts.gemma import first
from gemma_serving.scripts.logs.__main__ import COMMAND as LOGS
from gemma_serving.scripts.smoke.__main__ import COMMAND as SMOKE
from gemma_serving.scripts.stack import access, serves
from gemma_serving.scripts.status import collect
from gemma_serving.scripts.status.__main__ import COMMAND as STATUS
from gemma_serving.scripts.status.report import ServerFacts
from gemma_serving.scripts.teardown.__main__ import COMMAND as TEARDOWN
from gemma_serving.scripts.up import starting
from tests.laws import examples
from tests.scripts.stack import claims as said
from tests.scripts.stack.claims import REACHED, Claim, Run, Truth
from tests.scripts.stack.histories import STACK, HistoryWorld, drawn, playing

EXAMPLES: Final = examples(test=20, part=100, night=500)
FOUND: Final = (35, 84, 85, 86, 112)
"""Seeds beyond the first 20 that find a fault: of a renamed stack, an unread phase, one zone, and the record of another owner's machine."""
LIMIT_S: Final = 60.0
"""Time for an answer, so that a busy machine makes nothing unknown."""
USERS: Final = ("smoke", "bench", "chat")
COMMANDS: Final[dict[str, Command[Any]]] = {
    one.name: one for one in (STATUS, TEARDOWN, LOGS, SMOKE, BENCH, *connecting.COMMAND.subcommands)
}


def claims_of(world: HistoryWorld, run: Run) -> Iterator[Claim]:
    """Yield what each command says; by turns the guard, and one of the three that use the server."""
    seed = world.history.seed
    yield said.of_status(world, run)
    yield said.of_teardown(world, run)
    yield said.of_up(starting.exists_now(world.stack))
    yield said.of_gemma(world, first.first_lines(limit_s=LIMIT_S, now=lambda: world.now))
    yield said.of_logs(world, run)
    yield said.of_user(USERS[seed % len(USERS)], world, run)
    if seed % 2:
        yield said.of_guard(STACK, run)


def faults_of(world: HistoryWorld, truth: Truth, claims: Sequence[Claim]) -> Iterator[str]:
    """Yield what contradicts the cloud, or another command."""
    yield from said.faults_of(
        claims,
        truth,
        is_in_step=world.is_in_step,
        has_resources=bool(world.resources),
        # Cloud Monitoring has no use of a service that was deleted.
        is_readable=not world.history.unreadable and not world.was_recreated,
    )
    for claim in claims:
        if claim.word == "unknown" and world.history.unreadable == "phase" and claim.command != "gemma":
            yield f"{claim.command} calls the server unknown because its phase is"


def play(seed: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> Sequence[str]:
    """Play the history of a seed. Return what exists at its end, and a word for each command that does not know.

    Raises AssertionError with what the commands contradict.
    """

    texts = dict[str, str]()

    def run(command: str, *words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command(COMMANDS[command], words)
        printed = capsys.readouterr()
        texts[command] = printed.err if command == "logs" else printed.out + printed.err
        return code, printed.out, printed.err

    history = drawn(seed)
    with playing(history, folder) as world:
        truth = world.truth()
        claims = list(claims_of(world, run))
        faults = [*faults_of(world, truth, claims), *said.next_faults(texts)]
        assert not faults, "\n".join([str(history), f"in step: {world.is_in_step}", *faults])
        return [truth.word, *("unknown" for claim in claims if claim.unknown)]


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each command that uses the server end when it opens its access."""

    def reach(*_: object, **__: object) -> NoReturn:
        raise ScriptError(REACHED)

    monkeypatch.setattr(access, "open_stack_access", reach)
    monkeypatch.setattr(measuring, "open_stack_access", reach)
    monkeypatch.setattr(connecting, "_connected", reach)
    monkeypatch.setattr(serves, "GOOGLE_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(starting, "_GOOGLE_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(collect, "server_facts", lambda *_, **__: ServerFacts(health="ready"))


@pytest.mark.law
@pytest.mark.usefixtures("unreached")
def test_commands_agree_with_the_cloud_or_do_not_know(capsys):
    ends = Counter[str]()
    for seed in sorted({*range(EXAMPLES), *FOUND}):
        with TemporaryDirectory() as folder:
            ends.update(play(seed, Path(folder), capsys))
    assert min(ends["yes"], ends["no"]) > EXAMPLES / 5, "histories end with and without a server"
    assert ends["unknown"] < EXAMPLES, f"at most one answer of a history is unknown: {ends}"

"""Every printed "next" is true where only local files are damaged: it is typed in this process until the stack serves.

At the end, `gemma status` prints no command that changes the stack. Google is a local cloud in a thread, and the engine is `folder_engine`.
tests/engine/test_next_commands.py types the same with the real ones.
"""

import contextlib
import io
import shlex
import shutil
from dataclasses import dataclass
from random import Random

import pytest
import yaml

from gemma_serving.contracts.labels import NO_LIMITS
from gemma_serving.engine import runner
from gemma_serving.scripts.connect import __main__ as connecting
from gemma_serving.scripts.doctor import blocking, checkup, passphrase
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.scripts.stack import access
from tests.engine.conftest import Answer
from tests.laws import examples
from tests.scripts.stack.claims import READS
from tests.scripts.stack.folder_engine import FolderEngine
from tests.scripts.stack.following import READING, SEED, Followed, Situation
from tests.scripts.stack.histories import History, HistoryWorld, playing

PASSPHRASE = "local"
READ = examples(test=3, part=8, night=8)
"""So many of the commands that read are typed first in each situation; an `up` always is."""
HISTORY = History(seed=0, target="cloud-run", form="", zone="", least=0, limits=NO_LIMITS, steps=(("up complete", 60),))


class ReachedError(Exception):
    """A command opened its access to the server."""


@dataclass(kw_only=True)
class FolderWorld(Followed):
    """A stack that serves, its folder, and the engine."""

    world: HistoryWorld
    engine: FolderEngine
    patch: pytest.MonkeyPatch

    def type(self, line):
        words = shlex.split(line, comments=True)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = self._code(words)
        answer = Answer(code, out.getvalue(), err.getvalue())
        self.typed.append(f"$ {line}   ({answer.code})\n{answer.text[-1800:]}")
        return Answer(code, "", answer.err) if words[1] == "logs" else answer  # a log names no next command

    def _code(self, words):
        if words[0] == "pulumi":
            done = self.engine.run(*words[1:])
            print(done.stdout, done.stderr)
            return done.returncode
        asks = words[1] in {"up", "teardown"} and not {"--dry-run", "--yes"} & {*words}
        try:
            return main([*words[1:], *(["--yes"] if asks else [])])
        except ReachedError:
            return 0

    def serves(self):
        return self.world.truth().word == "yes" and self.type(f"gemma chat {self.stack} Hello.").code == 0

    # Damage

    @property
    def state_file(self):
        return self.world.state_file(self.stack)

    @property
    def settings(self):
        return self.engine.settings(self.stack)

    def cut_state(self, share):
        text = self.state_file.read_text()
        self.state_file.write_text(text[: int(len(text) * share)])

    def use_another_backend(self):
        before = f"file://{self.world.folder / 'backend'}"
        self.patch.setenv("PULUMI_BACKEND_URL", f"file://{self.world.folder / 'another'}")
        self.repairs.append(lambda: self.patch.setenv("PULUMI_BACKEND_URL", before))

    def drop_salt(self):
        lines = self.settings.read_text().splitlines(keepends=True)
        self.settings.write_text("".join(line for line in lines if "encryptionsalt" not in line))

    def add_unknown_setting(self):
        before = self.settings.read_text()
        document = yaml.safe_load(before)
        document["config"]["gemma-serving:vllm"]["maxModelLenn"] = 5
        self.settings.write_text(yaml.safe_dump(document))
        self.repairs.append(lambda: self.settings.write_text(before))


SITUATIONS = {
    "state cut off": lambda w: w.cut_state(0.5),
    "state without a byte": lambda w: w.cut_state(0),
    "side file empty": lambda w: w.state_file.with_suffix(".json.attrs").write_text(""),
    "lock of a dead process": lambda w: w.world._lock(),
    "another backend": lambda w: w.use_another_backend(),
    "renamed": lambda w: w.type(f"pulumi stack rename renamed --stack {w.stack}"),
    "settings file lost": lambda w: w.settings.unlink(),
    "salt lost": lambda w: w.drop_salt(),
    "unknown setting": lambda w: w.add_unknown_setting(),
}


@contextlib.contextmanager
def serving(folder, patch):
    """Yield a stack that serves, after a `gemma up` of this folder."""

    def reach(*_, **__):
        raise ReachedError

    patch.setenv("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE)
    patch.setattr(access, "open_stack_access", reach)
    patch.setattr(connecting, "_connected", reach)
    for module in (blocking, checkup):  # the rest of a stack's needs is Google's, which nothing changes here
        patch.setattr(module, "blockers", lambda one: [*passphrase.checks(one)])
    patch.setattr(checkup, "all_checks", lambda one: [*passphrase.checks(one)])
    with (
        playing(HISTORY, folder) as played,
        pytest.MonkeyPatch.context() as inner,
    ):  # undone before what `playing` replaces
        engine = FolderEngine(folder, played.stack)
        world = FolderWorld(stack=played.stack, world=played, engine=engine, patch=inner)
        inner.setattr(runner, "run", engine.run)
        inner.setattr(runner, "attended", engine.attended)
        world.settings.write_text(f"{world.settings.read_text()}encryptionsalt: {PASSPHRASE}\n")
        engine.variables, engine.deployed = (
            {"PULUMI_BACKEND_URL": f"file://{folder / 'backend'}"},
            world.settings.read_text(),
        )
        latest = engine._latest(world.stack)
        engine.program = tuple(latest["resources"])
        engine._write(
            world.stack, {**latest, "secrets_providers": {"type": "passphrase", "state": {"salt": PASSPHRASE}}}
        )
        assert world.type(f"gemma up {world.stack} --yes").code == 0, world.typed
        yield world


def restore(saved, folder):
    """Let a folder, which may be the working folder, have what was saved."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(saved, folder, dirs_exist_ok=True)


@pytest.mark.law
def test_each_printed_command_leads_to_a_stack_that_serves(tmp_path, monkeypatch, subtests, records):
    folder, saved = tmp_path / "folder", tmp_path / "saved"
    folder.mkdir()
    with serving(folder, monkeypatch) as world:
        shutil.copytree(folder, saved / "folder")
        shutil.copytree(records, saved / "records")
        for name, damage in SITUATIONS.items():
            for first in (*Random(f"{SEED} {name}").sample(READING, READ), "up {} --yes"):  # noqa: S311 - no secret
                line = f"gemma {first}".format(world.stack)
                change = "" if READS.match(line) else first
                with subtests.test(situation=name, first=line):
                    world.play(Situation(name, (line,), change), damage, ("serves",))
                    status = f"gemma status {world.stack}"
                    command = world.next_command(status, world.type(status))
                    world.require(READS.match(command), f"the stack serves, and `{command}` is printed")
                restore(saved / "folder", folder)
                restore(saved / "records", records)

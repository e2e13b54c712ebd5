"""The Pulumi engine of a stack that serves, without a process: it reads and writes the files of a local backend as the engine does.

Its program declares what the state had when the world began, so an update that creates a resource of Google fails the test.
tests/engine/test_next_commands.py compares its answers with the engine's.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.scripts.stack.settings import stack_settings

STACKS = Path(".pulumi") / "stacks" / "gemma-serving"
LOCKS = Path(".pulumi") / "locks" / "organization" / "gemma-serving"
EMPTY = {"manifest": {"time": "2026-11-20T12:00:00Z"}}
UNREADABLE = "failed to load checkpoint: "
LOCKED = """the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file with `pulumi cancel`.
  file://{path}?no_tmp_dir=true: created by {username}@{hostname} (pid {pid}) at {timestamp}"""


class EngineError(Exception):
    """What the engine prints after `error: `."""


@dataclass
class FolderEngine:
    """The engine, with the deployment and the settings of the last complete `up`."""

    folder: Path
    stack: str
    program: tuple = ()
    """Each resource that the program declares, as the state has it."""
    deployed: str = ""

    def run(self, *words, stdin=None, variables=None, **_):
        """Answer as `gemma_serving.engine.runner.run` does."""
        del stdin
        self.variables = {**os.environ, **(variables or {})}
        try:
            return subprocess.CompletedProcess(words, 0, self._answer(words), "")
        except EngineError as error:
            return subprocess.CompletedProcess(words, 1, "", f"error: {error}\n")

    def attended(self, *words, watch=None, variables=None):
        """Answer as `gemma_serving.engine.runner.attended` does."""
        done = self.run(*words, variables=variables)
        if watch is not None:
            watch()
        return done.returncode, done.stdout + done.stderr

    @property
    def backend(self):
        return Path(self.variables["PULUMI_BACKEND_URL"].removeprefix("file://"))

    def state_file(self, stack):
        return self.backend / STACKS / f"{stack}.json"

    def settings(self, stack):
        return self.folder / f"Pulumi.{stack}.yaml"

    def _answer(self, words):
        verbs, options = words[:2] if words[0] in {"stack", "config"} else words[:1], dict(pairwise(words))
        stack = options.get("--stack", words[2] if len(words) > 2 else "")
        return getattr(self, f"_{'_'.join(verbs)}")(stack, options)

    # Reading

    def _stack_ls(self, _stack, _options):
        found = sorted((self.backend / STACKS).glob("*.json"))
        rows = [{"name": path.stem, "resourceCount": len(self._latest(path.stem)["resources"])} for path in found]
        return json.dumps(rows)

    def _stack_export(self, stack, _options):
        latest = self._latest(stack, UNREADABLE)
        return json.dumps({"version": 3, "deployment": latest})

    def _stack_select(self, stack, _options, where=UNREADABLE):
        path = self.state_file(stack)
        if not path.is_file():
            raise EngineError(f"no stack named '{stack}' found")
        side = path.with_suffix(".json.attrs")
        if side.is_file() and not side.stat().st_size:
            raise EngineError(f"{where}EOF")
        return ""

    def _login(self, _url, _options):
        return ""  # the variable of the shell goes first

    def _stack_history(self, _stack, _options):
        config = {key: {"objectValue": value} for key, value in yaml.safe_load(self.deployed)["config"].items()}
        return json.dumps([{"kind": "update", "result": "succeeded", "config": config}])

    def _latest(self, stack, where=""):
        path = self.state_file(stack)
        self._stack_select(stack, {}, where)
        try:
            latest = json.loads(path.read_text())["checkpoint"]["latest"]
        except ValueError:
            raise EngineError(f"{where}place 1: unexpected end of JSON input") from None
        return {"resources": [], **latest}

    # Writing

    def _stack_init(self, stack, options):
        folder = Path(options.get("--cwd", self.folder))
        secrets = self._secrets(folder / f"Pulumi.{stack}.yaml")
        if self.state_file(stack).exists():
            raise EngineError(f"stack 'organization/gemma-serving/{stack}' already exists")
        self._write(stack, {**EMPTY, **secrets})
        return ""

    def _stack_rm(self, stack, _options):
        self._require_free(stack)
        self.state_file(stack).unlink()
        return ""

    def _stack_import(self, stack, options):
        self._stack_select(stack, {})
        self._require_free(stack, "could not import deployment: ")
        deployment = json.loads(Path(options["--file"]).read_text())["deployment"]
        deployment.pop("pending_operations", None)
        self._write(stack, deployment)
        return ""

    def _stack_rename(self, old, options):
        new = options["rename"]
        self._require_free(old)
        text = json.dumps(self._latest(old, UNREADABLE))
        self._write(new, json.loads(text.replace(f"urn:pulumi:{old}::", f"urn:pulumi:{new}::")))
        self.state_file(old).unlink()
        if self.settings(old).exists():
            self.settings(old).rename(self.settings(new))
        return f"Renamed {old} to {new}\n"

    def _config_refresh(self, stack, _options):
        self._stack_select(stack, {})
        self.settings(stack).write_text(self.deployed)
        return ""

    def _write(self, stack, latest):
        path = self.state_file(stack)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))

    def _secrets(self, path, salt=""):
        """Return what encrypts secrets by the salt in a settings file; without one, write `salt` or a new one. Here a salt is its passphrase."""
        text, passphrase = path.read_text(), self.variables["PULUMI_CONFIG_PASSPHRASE"]
        found = yaml.safe_load(text).get("encryptionsalt")
        if (found or salt or passphrase) != passphrase:
            raise EngineError("incorrect passphrase")
        if not found:
            path.write_text(f"{text}encryptionsalt: {passphrase}\n")
        return {"secrets_providers": {"type": "passphrase", "state": {"salt": passphrase}}}

    def _require_free(self, stack, where=""):
        for path in (self.backend / LOCKS / stack).glob("*.json"):
            raise EngineError(where + LOCKED.format(path=path, **json.loads(path.read_text())))

    # Runs of the program

    def _preview(self, stack, options):
        latest = self._run_program(stack)
        known = {one["urn"]: one for one in latest["resources"]}
        lacking = [one for one in self.program if one["urn"] not in known]
        same = [{"op": "same", "urn": urn, "oldState": one, "newState": one} for urn, one in known.items()]
        created = [{key: value for key, value in one.items() if key not in {"id", "outputs"}} for one in lacking]
        steps = [*same, *({"op": "create", "urn": one["urn"], "newState": one} for one in created)]
        events = [
            {"resOutputsEvent": {"metadata": {**one, "old": one.get("oldState"), "new": one["newState"]}}}
            for one in steps
        ]
        lines = map(json.dumps, [*events, {"summaryEvent": {}}])
        Path(options["--event-log"]).write_text("\n".join([*lines, ""]))
        return json.dumps({"steps": steps, "diagnostics": [], "changeSummary": {"same": len(same)}})

    def _refresh(self, stack, _options):
        self._require_free(stack)
        self._run_program(stack)
        return ""

    def _up(self, stack, _options):
        self._require_free(stack)
        latest = self._run_program(stack)
        known = {one["urn"] for one in latest["resources"]}
        created = [one["urn"] for one in self.program if one.get("custom") and one["urn"] not in known]
        assert not created, f"`up` creates what exists: {created}"
        self._write(stack, {**latest, "resources": list(self.program)})
        self.deployed = self.settings(stack).read_text()
        return ""

    def _run_program(self, stack):
        latest = self._latest(stack, UNREADABLE)
        known = latest.get("secrets_providers", {}).get("state", {}).get("salt", "")
        secrets = self._secrets(self.settings(stack), known)
        try:
            stack_settings(stack)
        except ScriptError as error:
            raise EngineError(str(error)) from None
        return {**latest, **secrets}

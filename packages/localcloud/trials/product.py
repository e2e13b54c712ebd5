"""The product's part of an evening: `gemma` and `pulumi` as child processes in the current folder, and the stacks of the trials."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.json_values import JsonObject, as_object, packaged, part, parts, strings
from localcloud.trials.journal import Journal
from localcloud.trials.sending import ApiReply

_NETWORKS: Final = {"network", "subnetwork"}
STACKS: Final = packaged("localcloud.trials", "stacks.json")
"""Stack -> the settings file that it copies, its maximum minutes and cost, changed settings, and a command before its first deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Runs the product's commands for one project. Their output goes into their replies."""

    project: str
    environment: Mapping[str, str]
    journal: Journal
    report: Callable[[str], None]

    def run(self, words: Sequence[str]) -> ApiReply:
        """Run a command, and return its output with status 200 if it succeeded, otherwise with status 0. An interruption waits for it."""
        program, *rest = words
        path = [str(Path(sys.executable).parent), self.environment.get("PATH", "")]
        command = [shutil.which(program, path=os.pathsep.join(path)) or program, *rest]
        self.report(" ".join(words))
        try:
            child = subprocess.Popen(
                command,
                env={**self.environment, "GOOGLE_CLOUD_PROJECT": self.project, "GOOGLE_PROJECT": self.project},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=(self.journal.lock,),
            )
        except OSError as error:
            return ApiReply(status=0, message=f"{program}: {error.strerror}")
        try:
            output, _ = child.communicate()
        except KeyboardInterrupt:
            child.terminate()
            child.communicate()
            raise
        last = output.strip().splitlines()[-1:] or ["no output"]
        if child.returncode == 0:
            return ApiReply(status=200, message=last[0], body=output)
        return ApiReply(status=0, message=f"`{' '.join(words)}` failed: {last[0]}", body=output)

    def deploy(self, stack: str) -> ApiReply:
        """Write the stack's settings file, and deploy it. Return the first failed command's reply, or the deployment's."""
        row = part(STACKS, stack)
        found = self.run(("gemma", "teardown", stack, "--dry-run", "--json"))
        kinds = {str(item["kind"]) for item in parts(_last_object(str(found.body or "")), "leaked")}
        # `up` uses again the network that Google held after an earlier deployment.
        is_network = bool(kinds) and kinds <= _NETWORKS
        if not (found.is_accepted or is_network or "not found" in str(found.body)):
            why = f"stack {stack} may be another evening's, and was not changed: `gemma teardown {stack} --dry-run` shows it"
            return ApiReply(status=0, message=why, body=found.body)
        self.journal.spend(stack, float(row["usd"]))
        self.journal.set("stacks", stack, exists=True)
        reply = self.run(("gemma", "init", stack, "--like", str(row["like"]), "--force"))
        if not reply.is_accepted:
            return reply
        path = settings_file(stack)
        text = path.read_text(encoding="utf-8")
        for before, after in part(row, "settings").items():
            text = text.replace(before, str(after))
        path.write_text(text, encoding="utf-8")
        if before := strings(row, "before"):
            reply = self.run(("gemma", *before))
        return self.run(("gemma", "up", stack, "--yes")) if reply.is_accepted else reply

    def tear_down(self, stack: str) -> str:
        """Tear a stack down, and delete its settings file. Return an empty text if the receipt is clean, otherwise the last line."""
        reply = self.run(("gemma", "teardown", stack, "--yes", "--json"))
        receipt = _last_object(str(reply.body or ""))
        if not reply.is_accepted or receipt.get("clean") is not True:
            return reply.message
        if parts(receipt, "held"):
            self.report(
                f"Google holds the network of stack {stack} for two hours, $0. Then run `gemma teardown {stack}`."
            )
        settings_file(stack).unlink(missing_ok=True)
        self.journal.set("stacks", stack, exists=False)
        return ""


def settings_file(stack: str) -> Path:
    """Return the settings file of a stack in the current folder."""
    return Path(f"Pulumi.{stack}.yaml")


def left_stacks(journal: Journal) -> list[str]:
    """Return the stacks that a run of this journal may have left."""
    return [stack for stack in STACKS if stack in journal.stacks]


def _last_object(output: str) -> JsonObject:
    """Return the JSON object at the end of an output, or an empty one."""
    at = output.find("\n{") + 1 if not output.startswith("{") else 0
    try:
        return as_object(json.loads(output[at : output.rfind("}") + 1]))
    except ValueError:
        return {}

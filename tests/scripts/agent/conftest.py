"""Stand-ins of the agent's tests: processes, the audit file, a client that asks its person."""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from mcp import types
from mcp.client.client import Client

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import steps_of
from gemma_serving.scripts.agent import delete_tools, server_tools, update_tools
from gemma_serving.scripts.agent.bounds import Bound
from gemma_serving.scripts.agent.codes import CodeShelf
from gemma_serving.scripts.agent.context import AgentContext, ShownPlan
from gemma_serving.scripts.agent.permissions import parse_permissions
from gemma_serving.scripts.agent.programs import ProgramResult
from gemma_serving.scripts.agent.recording import AuditFile
from gemma_serving.scripts.agent.spending import SpendingLimit
from gemma_serving.scripts.agent.staging import parse_sources
from loadtest.client.metrics import parse_metrics

ROOT = Path(__file__).parents[3]
STACK = "l4-qat"
CANARY = "hf_canary0123456789abcdef"
PREVIEW = {
    "steps": [{"op": "create", "urn": "urn:pulumi:s::p::t::bucket", "newState": {"type": "t", "inputs": {"a": 1}}}]
}


def spending(*, deployed=None, usd_per_hour_limit=10.0):
    """A spending limit whose states say that these stacks are deployed, by their US dollars an hour."""
    return SpendingLimit(states=lambda: deployed or {}, usd_per_hour_limit=usd_per_hour_limit)


def frozen(stack, into):
    """Stands in for the copy of the project, with the settings file only."""
    path = settings_file(stack, ROOT)
    if into is not None and path.exists():
        into.mkdir(exist_ok=True)
        shutil.copy(path, into)
    return SimpleNamespace(
        stack=stack,
        folder=into,
        settings=SimpleNamespace(
            max_usd=50,
            max_age_s=86_400,
            project="my-project",
            target="tpu",
            cloud_run=None if "tpu" in stack else "run",
        ),
        plan_id=lambda steps: f"plan-{hashlib.sha256(str([stack, steps]).encode()).hexdigest()[:16]}",
        bring_back_engine_lines=lambda _root: [],
    )


def keep(agent, stack=STACK):
    """Return the id of a plan as `preview` shows it."""
    plan_id = frozen(stack, None).plan_id(steps_of(PREVIEW))
    agent.shown[plan_id] = ShownPlan(plan_id=plan_id, tool="up", stack=stack, usd_per_hour=2.0)
    return plan_id


def called(argv):
    """Return the words of a program; of the product's as `gemma NAME OPTIONS`."""
    words, room = [str(part) for part in argv], "gemma_serving.scripts."
    start = next((at for at, word in enumerate(words) if word.startswith(room)), None)
    return words if start is None else ["gemma", words[start].removeprefix(room), *words[start + 1 :]]


class Commands:
    """Stands in for the processes: keeps what was run."""

    def __init__(self, monkeypatch, documents=None, code=0):
        self.run, self.documents, self.code = [], documents or {}, code
        self.folders = []
        self.hold, self.preview, self.up_code, self.up_said = None, PREVIEW, None, "said"

        async def run_program(argv, *, watch=None, secrets=(), folder=None, **_):
            argv = called(argv)
            self.run.append(argv)
            self.folders.append(folder)
            if watch is not None:
                await watch(["working"])
            if self.hold is not None:
                self.hold.set()
                await anyio.sleep_forever()
            document = self.preview if argv[1] == "preview" else self.documents.get(argv[1], {"ok": True})
            changes = argv[1] == "up" and self.up_code is not None
            return ProgramResult(
                exit_code=self.up_code if changes else self.code,
                printed=json.dumps(document),
                said=(self.up_said,),
                secrets=tuple(secrets),
            )

        for module in ("gemma_serving.scripts.agent.context", "gemma_serving.scripts.agent.update_tools"):
            monkeypatch.setattr(f"{module}.run_program", run_program)


@pytest.fixture
def commands(monkeypatch):
    monkeypatch.setattr(update_tools, "freeze", frozen)
    monkeypatch.setattr(update_tools, "most_usd_per_hour", lambda _settings, _folder: 2.0)
    monkeypatch.setattr(update_tools, "stack_locks", lambda _stack: ())
    monkeypatch.setattr(update_tools, "read", lambda stack: StackState(stack=stack, status="read"))
    monkeypatch.setattr("gemma_serving.scripts.doctor.blocking.blocking_checks", lambda *_: ())
    monkeypatch.setattr(update_tools, "require_bound", lambda *_, **__: Bound(text="This run costs $8.00 at most."))
    monkeypatch.setattr(update_tools.runner, "pulumi", lambda: "pulumi")
    return Commands(monkeypatch)


@pytest.fixture(autouse=True)
def codes(monkeypatch, tmp_path):
    """Where the codes of deletions are."""
    shelf = CodeShelf(folder=tmp_path / "codes")
    monkeypatch.setattr(delete_tools, "code_shelf", lambda: shelf)
    return shelf


class ModelServer:
    """Stands in for a deployed server: answers each prompt with one text, or an error, and has metrics."""

    served_model = "gemma"

    def __init__(self):
        self.opened, self.prompts, self.text, self.metrics, self.error = [], [], "", "", None

    async def scrape(self, **_):
        return parse_metrics(self.metrics)

    async def stream(self, body, **_):
        self.prompts.append(body["messages"][0]["content"])
        if self.error:
            raise self.error
        figures = dict.fromkeys(("usage", "ttft_s", "decode_tok_per_s", "simulated", "finish_reason"))
        return SimpleNamespace(text=self.text, reasoning=self.text, end_s=1.0, **figures)


@pytest.fixture
def model_server(monkeypatch):
    """The server that tools open, of each stack."""
    server = ModelServer()

    @contextlib.asynccontextmanager
    async def opened(stack):
        server.opened.append(stack)
        yield server, server

    monkeypatch.setattr(server_tools, "_client", opened)
    return server


@pytest.fixture
def bench_of():
    def make(allow="", *, secrets=(CANARY,), stage_from=(), **money):
        return AgentContext(
            allowed=parse_permissions(allow),
            spending=spending(**money),
            stage_from=parse_sources(stage_from),
            secrets=secrets,
        )

    return make


@pytest.fixture
def audit(tmp_path):
    return AuditFile(path=tmp_path / "audit.jsonl")


def lines(audit):
    return [json.loads(line) for line in audit.path.read_text().splitlines()]


def answering(action, content=None):
    async def answer(_context, _params):
        return types.ElicitResult(action=action, content=content)

    return answer


def typing(codes, stack=STACK, *, bucket=False, **other):
    """The answer of a person who looks at their terminal."""
    typed = {"stack_name": stack, "code": codes.new(stack)[1 if bucket else 0]}
    return answering("accept", {**typed, **other})


async def call(server, tool, arguments, **client):
    async with Client(server, **client) as one:
        return await one.call_tool(tool, arguments)


async def names(server, **client):
    async with Client(server, **client) as one:
        return {tool.name for tool in (await one.list_tools()).tools}

"""Stand-ins of the agent's tests: processes, the audit file, a client that asks its person."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from mcp import types
from mcp.client.client import Client

from gemma_serving.contracts.memory import memory_of
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import PlannedStep
from gemma_serving.scripts.agent import approvals, consent, deletions
from gemma_serving.scripts.agent.codes import CodeShelf
from gemma_serving.scripts.agent.context import AgentContext, ShownPlan
from gemma_serving.scripts.agent.permissions import parse_permissions
from gemma_serving.scripts.agent.programs import ProgramResult
from gemma_serving.scripts.agent.recording import AuditFile
from gemma_serving.scripts.agent.staging import parse_sources

ROOT = Path(__file__).parents[3]
STACK = "l4-qat"
BOUND = "$2.00 per hour. This run costs at most $8.00."
CANARY = "hf_canary0123456789abcdef"
STEP = {"op": "create", "type": "t", "name": "bucket", "digest": "d"}


def plan_of(stack, steps=(STEP,)):
    """The id of a plan of a stack."""
    text = str([stack, [step["digest"] if isinstance(step, dict) else step.digest for step in steps]])
    return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def frozen(stack, into, changes=None):
    """Stands in for the copy of the project."""
    settings = SimpleNamespace(max_usd=50, max_age_s=86_400, project="my-project", changes=changes)
    return SimpleNamespace(stack=stack, folder=into, settings=settings, plan_id=lambda steps: plan_of(stack, steps))


def keep(agent, stack=STACK, **arguments):
    """Show a plan as `preview` does, and return the arguments of `up`."""
    plan, arguments = plan_of(stack), {"stack": stack, **arguments}
    steps = (PlannedStep(**STEP),)
    effect = f"{stack}: creates the service."
    agent.shown[plan] = ShownPlan(
        id=plan, change="up", stack=stack, arguments=arguments, effect=effect, usd_per_hour=2.0, steps=steps
    )
    return {**arguments, "plan": plan}


def called(argv):
    """Return the words of a program; of the product's as `gemma NAME OPTIONS`."""
    words, room = [str(part) for part in argv], "gemma_serving.scripts."
    start = next((at for at, word in enumerate(words) if word.startswith(room)), None)
    return words if start is None else ["gemma", words[start].removeprefix(room), *words[start + 1 :]]


class Commands:
    """Stands in for the commands: keeps what was run."""

    def __init__(self, monkeypatch):
        self.run, self.texts, self.documents, self.code = [], [], {}, 0
        self.up_code, self.said = 0, "said"
        self.steps, self.usd_per_hour = (STEP,), 2.0

        async def run_program(argv, *, watch=None, secrets=(), stdin="", **_):
            argv = called(argv)
            self.run.append(argv)
            self.texts.append(stdin)
            if watch is not None:
                await watch(["working"])
            is_up = argv[1] == "up" and "--yes" in argv
            code = self.up_code if is_up else self.code
            document = self.documents.get(argv[1], self.plan(argv) if argv[1] == "up" else {"ok": True})
            if document is None or (is_up and code):
                document = {"error": self.said, "exit_code": code}
            return ProgramResult(
                exit_code=code,
                printed=json.dumps(document),
                said=(self.said,),
                secrets=tuple(secrets),
            )

        monkeypatch.setattr("gemma_serving.scripts.agent.context.run_program", run_program)

    def plan(self, argv):
        """What `gemma up --json` prints."""
        stack = argv[argv.index("--stack") + 1]
        effect = [f"{stack}: changes.", "Requests fail for 8 min."]
        sentences = {"sentences": effect} if "--restart" in argv else {"effect": effect, "sentences": ["It fits."]}
        facts = {"usd_per_hour": self.usd_per_hour, "steps": list(self.steps), **sentences}
        return {"plan": plan_of(stack, self.steps), "headline": f"{stack}: changes", **facts}


@pytest.fixture
def commands(monkeypatch):
    monkeypatch.setattr(approvals, "freeze", frozen)
    monkeypatch.setattr(approvals, "planned_cost", lambda *_: None)
    monkeypatch.setattr(approvals, "read", lambda stack: StackState(stack=stack, status="read"))
    monkeypatch.setattr(
        approvals, "require_bound", lambda _stack, usd, *_: BOUND if usd == 2.0 else f"${usd} per hour."
    )
    return Commands(monkeypatch)


@pytest.fixture(autouse=True)
def codes(monkeypatch, tmp_path):
    """Where the questions and their codes are. The stacks of the checkout name no project."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "local-project")
    shelf = CodeShelf(memory=memory_of(tmp_path, "of codes"))
    for module in (consent, deletions):
        monkeypatch.setattr(module, "code_shelf", lambda: shelf)
    return shelf


@pytest.fixture
def bench_of():
    def make(allow="", *, secrets=(CANARY,), stage_from=()):
        return AgentContext(
            allowed=parse_permissions(allow),
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


YES = answering("accept", {"approve": True})


def typing(codes, stack=STACK, **other):
    """The answers of a person who reads the code on their terminal."""

    async def answer(_context, question):
        if "approve" in question.requested_schema["properties"]:
            return types.ElicitResult(action="accept", content={"approve": True})
        content = {"stack_name": stack, "code": codes.new(stack)[1], **other}
        return types.ElicitResult(action="accept", content=content)

    return answer


async def call(server, tool, arguments, *, elicitation_callback=YES, **client):
    async with Client(server, elicitation_callback=elicitation_callback, **client) as one:
        return await one.call_tool(tool, arguments)


async def names(server, **client):
    async with Client(server, **client) as one:
        return {tool.name for tool in (await one.list_tools()).tools}


def calls_of(tool):
    """Return the least arguments of a call, from the tool's schema."""
    folders = {"before": "results/a/one", "after": "results/a/two"}
    values = {"stack": STACK, "prompt": "hello", "plan": plan_of(STACK), "run": "run-0", **folders}
    return {name: values[name] for name in tool.input_schema.get("required", ())}

"""Every tool with every parameter of its schema: no internal error, no answer that is too long for a context, no parameter that never works."""

import contextlib
import importlib
import io
import json
import re
from types import SimpleNamespace

import anyio
import pytest
from mcp.client.client import Client

from gemma_serving.scripts.agent import action_tools
from gemma_serving.scripts.agent.permissions import CHANGES
from gemma_serving.scripts.agent.presenting import MOST_CHARACTERS, compact_json
from gemma_serving.scripts.agent.programs import ProgramResult
from gemma_serving.scripts.agent.server import build
from gemma_serving.scripts.cli import command as cli
from tests.scripts.agent.conftest import CANARY, STACK, called, typing

MODEL = "google/gemma-4-12B-it"
LOADS = "in=700,out=300,users=4"
NEEDED = {
    "plan": {"stack": STACK},
    "compare_machines": {"model": MODEL},
    "solve": {"model": "12B", "workload": LOADS},
    "explain_finding": {"identifier": "FIT01"},
    "ask": {"prompt": "hello"},
    "benchmark": {"name": "fresh"},
    "compare_benchmarks": {"before": "one", "after": "two"},
    "scale": {"min_instances": 0, "max_instances": 1000},
}
"""What a call needs beside the stack."""
SAMPLES = {
    "stack": STACK,
    "model": MODEL,
    "workload": LOADS,
    "settings": ["vllm.maxModelLen=8192"],
    "accelerator": "v6e-4",
    "identifier": "CST02",
    "plan_id": "plan-0123456789abcdef",
    "run": "up-0123",
    "seconds": 1,
    "prompt": "x" * 50_000,
    "read_by": STACK,
    "since": "1d",
    "project": "a-project",
    "name": "fresh",
    "before": "one",
    "after": "two",
    "revision": "main",
    "source": "gs://a-bucket/folder",
    "to": "gemma-l4-qat-00002-abc",
    "concurrency": [1, 2],
    "accelerators": ["L4", "v6e-4"],
    "max_usd_per_hour": 6.5,
    "max_ttft_s": 2,
    "max_tpot_s": 0.1,
    "replicas": "1:3",
    "image": f"here/server@sha256:{'c' * 64}",
    "gateway": "inference",
}
"""A value of each parameter whose schema does not name its values."""
WITHOUT_STACK = {("plan", "model"), ("plan", "accelerator"), ("plan", "settings")}
"""These belong to a question without a stack."""
OF_WORK = {"wait", "cancel"}
"""They take the handle of work, and none is left here: they are refused."""
QUESTION = {"model": MODEL, "accelerator": "v6e-4"}


PLACE = {name: {"answer": "unknown", "detail": "d" * 160} for name in ("hardware", "provisioning", "quota")}
POINT = {f"p99_{figure}_ms": 1.5 for figure in ("ttft", "tpot", "itl", "e2el")}
LONG = {
    "capacity": {
        "locations": [
            {"accelerator": f"v5e-{n % 8}", "location": f"us-{n}-a", "forms": ["f"] * 90, **PLACE} for n in range(32)
        ]
    },
    "logs": {
        "stack": STACK,
        "target": "cloud-run",
        "cause": None,
        "lines": [{"time": "t" * 24, "source": "stderr", "text": '"\\\u202e' * 40} for _ in range(120)],
    },
    "bench": {"points": [{"point": {"concurrency": n}, "notes": ["n" * 300], **POINT} for n in range(16)]},
    "up": {"plan": "plan-00000000000000aa", "target": "tpu", "sentences": ["s" * 300] * 40},
}
"""Output of commands that ask Google or a server, and whose keys a tool reads; longer than usual."""
ANY = {"rows": [{"n": n, "texts": ["t" * 200] * 5} for n in range(60)]}
"""Output of every other command."""
URN = "urn:pulumi:l4-qat::gemma-serving::gcp:cloudrunv2/service:Service::vllm"
STEP = {
    "op": "update",
    "urn": URN,
    "diffReasons": ["template"],
    "detailedDiff": {f"template.containers[0].args[{n}]": {"kind": "update"} for n in range(60)},
    **{
        state: {
            "type": "gcp:cloudrunv2/service:Service",
            "inputs": {"template": {"containers": [{"args": [f"--{state}={n}{'x' * 400}" for n in range(60)]}]}},
        }
        for state in ("oldState", "newState")
    },
}
PREVIEWED = {"steps": [STEP] * 3, "diagnostics": [{"severity": "warning", "message": "w" * 900}] * 10}


class RealCommands:
    """Runs the commands that only compute in this process; of the others it reads the options as they would."""

    def __init__(self):
        self.planned = {}

    async def run_program(self, argv, *, secrets=(), **_options):
        if argv[1] in {"preview", "up"}:
            return self.result(0, json.dumps(PREVIEWED) if argv[1] == "preview" else "", ["said"] * 40, secrets)
        _, name, *arguments = called(argv)
        command = importlib.import_module(
            f"gemma_serving.scripts.{name}.__main__"
            if importlib.util.find_spec(f"gemma_serving.scripts.{name}").submodule_search_locations
            else f"gemma_serving.scripts.{name}"
        ).COMMAND
        if name == "plan" and arguments[:1] != ["prices"]:
            key = tuple(arguments)
            if key not in self.planned:
                self.planned[key] = self.ran(command, arguments)
            code, out, said = self.planned[key]
            return self.result(code, out, said, secrets)
        cli._read(command, arguments)
        return self.result(0, json.dumps(LONG.get(name, ANY)), [f"{name}: {'─' * 120}"] * 40, secrets)

    @staticmethod
    def ran(command, arguments):
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = cli.run_command(command, arguments)
        return code, out.getvalue(), said.getvalue().splitlines()

    @staticmethod
    def result(code, printed, said, secrets):
        return ProgramResult(exit_code=code, printed=printed, said=tuple(said), secrets=tuple(secrets))


@pytest.fixture
def whole(bench_of, audit, commands, codes, model_server, monkeypatch):  # noqa: PLR0917 - fixtures
    """A server with every tool, and long answers of whatever asks Google or a server."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    real = RealCommands()
    for module in ("gemma_serving.scripts.agent.context", "gemma_serving.scripts.agent.update_tools"):
        monkeypatch.setattr(f"{module}.run_program", real.run_program)
    outputs = dict.fromkeys(("endpoint", "auth", "served_model", "connect", "deadline"), "x")
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.serving_outputs", lambda _stack: SimpleNamespace(**outputs))
    about = SimpleNamespace(recorded=None), SimpleNamespace(**outputs, target="cloud-run")
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.serving_facts", lambda _stack: about)
    model_server.text = '"\\é' * 50_000
    model_server.metrics = "".join(f"vllm:{'m' * 40}{n}_total 1\n" for n in range(300))
    monkeypatch.setattr("gemma_serving.scripts.agent.update_tools.replace_file", lambda *_: None)
    folder = audit.path.parent
    monkeypatch.setattr(action_tools, "_folder", lambda name: folder / name)
    for name in ("one", "two"):
        (folder / name).mkdir()
    agent = bench_of(",".join(CHANGES), stage_from=[SAMPLES["source"]])
    server = build(agent, audit)

    async def person(context, question):
        """Look at the terminal for each question."""
        return await typing(codes, bucket="BUCKET" in question.message)(context, question)

    server.person = person
    return server


def connected(server):
    return Client(server, elicitation_callback=server.person)


def values_of(name, schema):
    """Return values of a parameter that its schema allows: each one where it names them."""
    if schema.get("type") == "boolean":
        return [True]
    if "enum" in schema:
        return schema["enum"]
    if "enum" in schema.get("items", {}):
        return [[value] for value in schema["items"]["enum"]]
    if schema.get("type") == "integer":
        return sorted({schema.get("minimum", 1), schema.get("maximum", 100)})
    assert name in SAMPLES, f"{name} has no sample: add one to SAMPLES"
    return [SAMPLES[name]]


def calls_of(tool):
    """Yield the parameter and the arguments of each call: two values of each parameter at most."""
    properties = tool.input_schema["properties"]
    needed = dict(NEEDED.get(tool.name, {}))
    if "stack" in properties and "stack" in tool.input_schema.get("required", ()):
        needed["stack"] = STACK
    yield None, needed
    for name, schema in properties.items():
        values = values_of(name, schema)
        for value in values[:: (len(values) + 1) // 2]:
            base = QUESTION if (tool.name, name) in WITHOUT_STACK else needed
            yield name, {**base, name: value}


def text_of(result):
    return "".join(item.text for item in result.content)


async def with_plan(client, tool, name, given):
    """Return the arguments with a plan that holds, where the call runs one."""
    if tool == "up":
        made = await client.call_tool("preview", {"stack": STACK})
    elif tool == "restart" and name == "plan_id":
        given = {key: value for key, value in given.items() if key != "plan_id"}
        made = await client.call_tool(tool, given)
    else:
        return given
    return {**given, "plan_id": made.structured_content["plan_id"]}


def test_every_parameter_of_every_tool_works_and_no_answer_is_too_long(whole):
    """`full: true` alone may be longer, because the caller asks for all."""

    async def law():
        wrong, sizes = [], {}
        async with connected(whole) as client:
            for tool in (await client.list_tools()).tools:
                for name, given in calls_of(tool):
                    arguments = await with_plan(client, tool.name, name, given)
                    said = f"{tool.name} {compact_json(arguments)[:150]}"
                    result = await client.call_tool(tool.name, arguments)
                    text, refused = text_of(result), bool(result.is_error)
                    if refused and tool.name not in OF_WORK:
                        wrong.append(f"{said} is refused: {text[:300]}")
                    if "Error executing tool" in text or "Traceback" in text or "pydantic" in text:
                        wrong.append(f"{said}: {text[:300]}")
                    if arguments.get("full") is not True and len(text) > MOST_CHARACTERS:
                        wrong.append(f"{said}: {len(text)} characters")
                    if not refused and json.loads(text) != result.structured_content:
                        wrong.append(f"{said}: the text is not the structured content")
                    if name is None:
                        sizes[tool.name] = len(text)
        return wrong, sizes

    wrong, sizes = anyio.run(law)
    assert wrong == []
    assert set(sizes) >= {"plan", "capacity", "preview", "teardown"}


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("plan", {"stak": "x"}, "plan has no argument 'stak'. It takes stack, model"),
        ("explain_finding", {}, "explain_finding requires identifier"),
        ("capacity", {"provisioning": "gift"}, "it must be 'flex-start', 'spot', 'standard' or 'reservation'"),
        (
            "benchmark",
            {"stack": STACK, "name": "x", "concurrency": [1, 0]},
            "concurrency.1 of benchmark is 0; it must be greater than or equal to 1",
        ),
        ("ask", {"stack": STACK, "prompt": ""}, "prompt of ask is ''"),
        ("plan", {"model": "gpt-5", "accelerator": "L4"}, 'The model "gpt-5" is not in the catalog'),
        ("destroy_vllm", {"confirm": True}, "Unknown tool: destroy_vllm"),
        ("plan", {"stack": [STACK]}, "it must be a valid string"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_what_is_allowed(whole, tool, arguments, words):
    async def ask():
        async with connected(whole) as client:
            return await client.call_tool(tool, arguments)

    found = anyio.run(ask)
    assert found.is_error
    assert words in text_of(found)
    assert not re.search(r"pydantic|validation error|Error executing|type=|^plan: ", text_of(found))


def test_a_bug_is_named_without_its_text(whole, monkeypatch):
    def breaks(_stack):
        raise KeyError(CANARY)

    monkeypatch.setattr("gemma_serving.scripts.stack.serves.serving_outputs", breaks)

    async def ask():
        async with connected(whole) as client:
            return await client.call_tool("endpoint", {"stack": STACK})

    found = anyio.run(ask)
    assert found.is_error
    assert text_of(found) == "Error executing tool endpoint"
    assert CANARY not in text_of(found)

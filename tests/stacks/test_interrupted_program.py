"""SIGINT to the program's process ends it, also while the engine waits for an answer to one of its hooks."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import callback_pb2, callback_pb2_grpc, engine_pb2_grpc, resource_pb2, resource_pb2_grpc

from tools.engine.model import LANGUAGE_EXEC, Source
from tools.engine.setup import cached, on_path

ROOT = Path(__file__).resolve().parents[2]
STEPS = """
import pulumi
from gemma_serving.stacks import program

async def after(_args):
    pass

def run():
    hooks = pulumi.ResourceHookBinding(after_create=[pulumi.ResourceHook("after", after)])
    pulumi.ComponentResource("test:index:Machine", "machine", None, pulumi.ResourceOptions(hooks=hooks))

program.run = run
program.main()
"""
"""A program with one registration that the engine does not answer before its hook."""

pytestmark = pytest.mark.engine


class Engine(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """Makes a machine that is ready after the signal, then asks the hook, and answers the registration after the hook's answer, as the engine does."""

    def __init__(self):
        self.making, self.signaled = threading.Event(), threading.Event()
        self.hook = None

    def GetDeploymentInfo(self, request, context):  # noqa: N802  names are the protocol's
        del request, context
        return resource_pb2.DeploymentInfo(supportedFeatures=[resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_HOOKS])

    def Log(self, request, context):  # noqa: N802
        del request, context
        return empty_pb2.Empty()

    def RegisterResourceHook(self, request, context):  # noqa: N802
        del context
        self.hook = request.callback
        return empty_pb2.Empty()

    def RegisterResource(self, request, context):  # noqa: N802
        del context
        if request.type == "test:index:Machine":
            self.making.set()
            self.signaled.wait()
            self._ask()
        return resource_pb2.RegisterResourceResponse(urn=f"urn:pulumi:s::p::{request.type}::{request.name}")

    def RegisterResourceOutputs(self, request, context):  # noqa: N802
        del request, context
        return empty_pb2.Empty()

    def _ask(self):
        with grpc.insecure_channel(self.hook.target) as channel, contextlib.suppress(grpc.RpcError):
            ask = callback_pb2.CallbackInvokeRequest(
                token=self.hook.token, request=resource_pb2.ResourceHookRequest().SerializeToString()
            )
            callback_pb2_grpc.CallbacksStub(channel).Invoke(ask)


def runner():
    """The file with which the engine runs Python programs; it comes with every engine."""
    engines = [on_path(), *(cached(source) for source in Source if source is not Source.PATH)]
    files = [engine.executable.with_name(LANGUAGE_EXEC) for engine in engines if engine is not None]
    return next(file for file in files if file.is_file())


@pytest.fixture
def engine():
    """An engine that makes a machine, and its address."""
    monitor = Engine()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(monitor, server)
    engine_pb2_grpc.add_EngineServicer_to_server(monitor, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield monitor, f"127.0.0.1:{port}"
    monitor.signaled.set()
    server.stop(grace=None).wait()


def test_sigint_ends_the_program_while_the_engine_waits_for_a_hook(engine, tmp_path):
    monitor, address = engine
    (tmp_path / "__main__.py").write_text(STEPS)
    words = ["--monitor", address, "--engine", address, "--project", "p", "--stack", "s", "--parallel", "4", "."]
    process = subprocess.Popen(
        [sys.executable, str(runner()), "--pwd", str(tmp_path), *words],
        env={**os.environ, "PULUMI_CONFIG": "{}", "PULUMI_CONFIG_SECRET_KEYS": "[]", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
    )
    try:
        assert monitor.making.wait(timeout=60), "the program registered nothing"
        process.send_signal(signal.SIGINT)
        monitor.signaled.set()
        assert process.wait(timeout=60) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()

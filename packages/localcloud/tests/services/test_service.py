"""The one shape of a service: marked methods by discovery id, and one list answer."""

import subprocess
import sys

from localcloud import services
from localcloud.rest.discovery import VERSIONS


def test_every_api_with_a_document_has_modules():
    assert set(services.MODULES) == set(VERSIONS)


def test_the_command_starts_without_what_a_first_request_imports():
    late = ["cel", "PIL", "promql_parser", "google.protobuf", "requests", "pulumi.resource", "localcloud.plugins.gcp"]
    late += [f"localcloud.{name}" for name in ("running.revisions", "services.run", "services.tpu", "vllm.server")]
    code = f"import sys, localcloud.cli; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

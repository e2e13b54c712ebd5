"""The provider's pages agree with the code."""

import json
import re
from pathlib import Path

from dev.authors.provider_tables import tables
from gcp_tpu_provider import VERSION
from gcp_tpu_provider.properties import inputs, outputs, package_schema
from gcp_tpu_provider.transport import Pacing
from gemma_serving.vm_agent.stored_state import AgentPacing
from tests.agreement.registry_pages import INDEX, INSTALLATION, LANGUAGES, samples

DOCS = Path(__file__).parents[2] / "docs"
PROPERTIES = (DOCS / "provider-gcp-tpu-properties.md").read_text()
PAGE = (DOCS / "provider-gcp-tpu.md").read_text() + (
    DOCS.parent / "dev" / "docs" / "provider-gcp-tpu-internals.md"
).read_text()


def test_the_reference_is_the_generated_one():
    shown = PROPERTIES.partition("<!-- generated: provider-properties -->\n\n")[2].removesuffix("\n<!-- end -->\n")
    assert shown == tables()["provider-properties"], "run `make docs`"


def test_the_limits_in_the_text_are_the_codes():
    pacing = Pacing()
    assert (pacing.poll_first_s, pacing.poll_most_s, pacing.retry_budget_s) == (0.3, 15, 120)
    assert (pacing.first_contact_s, pacing.delete_s, pacing.operation_s) == (10, 1800, 600)
    assert "The provider polls after 0.3 s at first, and later every 15 s at most." in PAGE
    assert "for two minutes per call" in PAGE
    assert "| a deletion | half an hour |" in PAGE
    assert "| a change of a node | ten minutes |" in PAGE
    assert (pacing.appear_s, pacing.late_s) == (60, 180)
    assert "| a request whose response was lost | one minute; in a deletion or a refresh three |" in PAGE
    delays = AgentPacing().restart_delays_s
    assert "restarted after {:g}, {:g}, {:g} and {:g} s".format(*delays) in PAGE


def test_the_registry_can_render_its_pages(subtests):
    """What the registry checks of a community package without an account (pulumi/registry, scripts/ci/community-package, resourcedocsgen)."""
    for page, layout in ((INDEX, "package"), (INSTALLATION, "installation")):
        text = page.read_text()
        with subtests.test(page.name):
            front = re.match(r"---\ntitle: \S.*\nmeta_desc: \S.*\nlayout: (\w+)\n---\n", text)
            assert front
            assert front[1] == layout
            assert not re.search(r"!\[[^]]*\]\((?!https?://)|<img[^>]+src=[\"'](?!https?://)", text), "a relative image"
            assert not re.search(r"\]\((?!https?://)[^)]*\.md[)#]|<a[^>]+href=[\"'][./]", text), "a link to a file"
    schema = json.loads(package_schema())
    repository = schema["repository"].removeprefix("https://github.com/")
    for page in (INDEX, INSTALLATION, DOCS.parent / "packages" / "gcp-tpu" / "README.md"):
        text = page.read_text()
        with subtests.test(f"{page.name}: one version and one owner"):
            assert {*re.findall(r"\d+\.\d+\.\d+", text)} <= {VERSION}
            assert {*re.findall(r"github\.com/([\w-]+/[\w.-]*\w)", text)} <= {repository, "pulumi/pulumi"}
    with subtests.test("a sample in each language"):
        assert f'{{{{< chooser language "{",".join(LANGUAGES)}" >}}}}' in INDEX.read_text()
        assert tuple(samples()) == LANGUAGES
    with subtests.test("installation"):
        commands = (
            f"pulumi plugin install resource gcp-tpu {VERSION} --file ",
            "pulumi config set gcp-tpu:project ",
            "export GOOGLE_CLOUD_PROJECT=",
        )
        assert [words for words in commands if words not in INSTALLATION.read_text()] == []


def test_every_sample_names_properties_of_the_resource(subtests):
    forms = {
        "python": r"^        (\w+)=",
        "yaml": r"^      (\w+): ",
    }
    known = {*inputs(), *outputs()}
    for language, code in samples().items():
        with subtests.test(language):
            named = re.findall(forms[language], code, re.MULTILINE)
            camel = [re.sub(r"_(\w)", lambda found: found[1].upper(), name[0].lower() + name[1:]) for name in named]
            assert camel == [
                "zones",
                "acceleratorType",
                "runtimeVersion",
                "provisioningModel",
                "maxRunDurationS",
                "waitPerZoneS",
            ]
            exported = {name[0].lower() + name[1:] for name in re.findall(r"server\.(\w+)", code)}
            assert exported == {"zone", "deadline"}
            assert {*camel} <= {*inputs()}
            assert exported <= known
    package = json.loads(package_schema())["language"]["python"]["packageName"]
    assert f"import {package} as gcp_tpu\n" in samples()["python"]
    assert f"generates the SDK `{package}`" in INSTALLATION.read_text()

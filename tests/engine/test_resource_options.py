"""Each of Pulumi's resource options on a component, by the package and by import, with the real CLI: what its resources get.

A transform of the whole program sees the options of each resource, and those of a resource that the program itself declares with the option: otherwise
it could not be seen. docs/package.md has the same table.
"""

import inspect
import json
import re

import pulumi
import pytest

from tests.engine.conftest import PROJECT, ROOT, open_workspace

pytestmark = [pytest.mark.engine, pytest.mark.long]
REACH = {
    "parent": "yes",
    "protect": "yes",
    "retain_on_delete": "yes",
    "deleted_with": "yes",
    "provider": "yes",
    "providers": "yes",
    "transforms": "yes",
    "transformations": "import only",
    "ignore_changes": "no",
    "replace_on_changes": "no",
    "replacement_trigger": "no",
    "custom_timeouts": "no",
    "delete_before_replace": "no",
    "additional_secret_outputs": "no",
    "hooks": "no",
}
"""True if the resources of a component get its option."""
WITH_THE_COMPONENT = {"aliases", "depends_on"}
"""Options that the engine applies to a component with its resources. Each has a test."""
UNSEEN = {"replace_with", "hide_diffs"}
"""Options that a transform does not see. They have no test."""
OF_OTHERS = {"id", "import_", "urn", "version", "plugin_download_url", "env_var_mappings", "state_migrations"}
"""Options of a resource that exists, of a plugin, of a provider and of a state, which are not for a component. They have no test."""
SEEN = {
    "provider": "provided",
    "providers": "provided",
    "transforms": "labelled",
    "transformations": "labelled",
    "parent": "grouped",
    "hooks": "hooked",
}
"""Column of an option that its value does not show, or that a resource may have for another reason."""
PROGRAM = """
import json
import pulumi
import pulumi_gcp as gcp
from gemma_serving.components.stored_secret import HuggingFaceToken, StoredSecretArgs

project, seen = pulumi.Config("gcp").require("project"), open("seen.jsonl", "a", buffering=1)
options = ["protect", "retain_on_delete", "deleted_with", "ignore_changes", "replace_on_changes", "custom_timeouts", "delete_before_replace"]
texts = {"replacement_trigger": "first", "additional_secret_outputs": "secretId"}
added = {"labels": {"added": "yes"}}


async def record(args):
    opts, parent = args.opts, args.opts.parent and await args.opts.parent.urn.future()
    row = {key: bool(getattr(opts, key)) for key in options} | {key: text in str(getattr(opts, key)) for key, text in texts.items()}
    row |= {"provided": bool(opts.provider), "labelled": "added" in (args.props.get("labels") or {}), "grouped": "own:index:Group" in str(parent)}
    row |= {"hooked": any(vars(opts.hooks or args).get("after_create") or ())}
    seen.write(json.dumps({"type": args.type_, "name": args.name, **row}) + "\\n")


pulumi.runtime.register_resource_transform(record)


class Packaged(pulumi.ComponentResource):
    def __init__(self, kind, name, inputs, opts):
        super().__init__(f"gemma-serving:index:{kind}", name, {"project": project, **inputs}, opts, remote=True)


def token(name, id=None, **opts):
    inputs = {"project": project, "value": "unused"}
    HuggingFaceToken(f"import-{name}", StoredSecretArgs(secret_id=f"i-{id or name}", **inputs), pulumi.ResourceOptions(**opts))
    Packaged("HuggingFaceToken", f"package-{name}", {"secretId": f"p-{id or name}", **inputs}, pulumi.ResourceOptions(**opts))
"""
TABLE = (
    PROGRAM
    + """

def secret(name, opts=None):
    return gcp.secretmanager.Secret(name, replication={"auto": {}}, secret_id=name, opts=opts)


def label(result):
    def transform(args):
        is_secret = (getattr(args, "type_", None) or args.type) == "gcp:secretmanager/secret:Secret"
        return result({**args.props, **added}, args.opts) if is_secret else None
    return transform


def reach(kind):
    def transform(args):
        seen.write(json.dumps({"type": args.type_, "name": args.name, "of": kind}) + "\\n")
    return transform


first = secret("first")
late = secret("late", pulumi.ResourceOptions(depends_on=[first]))
provider = gcp.Provider("own", project=project)
values = {
    "parent": pulumi.ComponentResource("own:index:Group", "group"), "protect": True, "retain_on_delete": True, "deleted_with": late,
    "provider": provider, "providers": [provider], "transforms": [label(pulumi.ResourceTransformResult)],
    "transformations": [label(pulumi.ResourceTransformationResult)], "ignore_changes": ["labels"], "replace_on_changes": ["labels"],
    "replacement_trigger": "first", "custom_timeouts": pulumi.CustomTimeouts(create="5m"), "delete_before_replace": True,
    "additional_secret_outputs": ["secretId"], "depends_on": [late],
    "hooks": pulumi.ResourceHookBinding(after_create=[pulumi.ResourceHook("hook", lambda args: None)]),
}
for key, value in values.items():
    token(key, **{key: value})
    secret(f"own-{key}", pulumi.ResourceOptions(**({"provider": provider} if key == "providers" else {key: value})))
server = {"serviceAccount": f"own@{project}.iam.gserviceaccount.com", "model": "google/gemma-4-E2B-it", "vllm": {"maxModelLen": 8192}}
run = {"region": "us-east4", "gpu": "nvidia-l4", "cpu": 8, "memory": "32Gi", "concurrency": 16, "maxInstances": 1}
tpu = {"acceleratorType": "v6e-1", "zones": ["us-east5-a"], "maxRunDuration": "4h"}
network = {"network": f"projects/{project}/global/networks/default", "subnetwork": "default"}
for kind, inputs in {
    "CloudRunGpuService": {**server, "serviceName": "own-gpu", "cloudRun": run},
    "TpuQueuedResource": {**server, **network, "queuedResourceId": "own-tpu", "tpu": tpu},
    "ModelBucket": {"name": f"{project}-own", "location": "us-east4"},
    "HuggingFaceToken": {"secretId": "own-token", "value": "unused"},
}.items():
    Packaged(kind, f"any-{kind}", inputs, pulumi.ResourceOptions(transforms=[reach(kind)]))
"""
)
BEFORE = PROGRAM + "token('before')\n"
AFTER = (
    PROGRAM.replace(
        "ResourceOptions(**opts)", "ResourceOptions(aliases=[pulumi.Alias(name='import-before')])", 1
    ).replace("ResourceOptions(**opts)", "ResourceOptions(aliases=[pulumi.Alias(name='package-before')])")
    + "token('after', id='before')\n"
)
SECRET = "gcp:secretmanager/secret:Secret"


@pytest.fixture(scope="module")
def consumer(tmp_path_factory):
    """A function that runs the CLI on a program with both plugins by their paths, and one that returns what the transforms saw."""
    with open_workspace(tmp_path_factory.mktemp("options"), cold=True) as workspace:
        checkout, folder = workspace.folder / "project", workspace.folder / "consumer"
        folder.mkdir()
        plugins = {"gemma-serving": checkout / "components", "gcp-tpu": checkout / "packages" / "gcp-tpu"}
        listed = "".join(f"    - {{name: {name}, path: {path}}}\n" for name, path in plugins.items())
        runtime = f"runtime: {{name: python, options: {{virtualenv: {checkout / '.venv'}}}}}"
        (folder / "Pulumi.yaml").write_text(f"name: options\n{runtime}\nplugins:\n  providers:\n{listed}")

        def run(*words, program):
            (folder / "__main__.py").write_text(program)
            return workspace.pulumi(*words, "--cwd", str(folder), environment={"PYTHONPATH": str(checkout)})

        run("stack", "init", "dev", program="")
        run("config", "set", "gcp:project", PROJECT, program="")
        run("preview", program=TABLE)
        yield run, [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


def _secret(consumer, name):
    (found,) = [one for one in consumer[1] if (one["type"], one["name"]) == (SECRET, name) and "of" not in one]
    return found


def test_every_option_of_the_sdk_is_in_one_of_the_groups():
    options = set(inspect.signature(pulumi.ResourceOptions.__init__).parameters) - {"self"}
    assert sorted([*REACH, *WITH_THE_COMPONENT, *UNSEEN, *OF_OTHERS]) == sorted(options)


@pytest.mark.parametrize("option", REACH)
def test_the_resources_get_what_the_table_states(consumer, option):
    key = SEEN.get(option, option)
    assert not _secret(consumer, "first")[key]
    assert _secret(consumer, f"own-{option}")[key]
    by_import, by_package = (_secret(consumer, f"{way}-{option}")[key] for way in ("import", "package"))
    assert {"yes": (True, True), "import only": (True, False), "no": (False, False)}[REACH[option]] == (
        by_import,
        by_package,
    )


def test_transforms_reach_the_resources_of_each_component(consumer):
    reached = {(one["of"], one["type"]) for one in consumer[1] if "of" in one}
    assert reached >= {
        ("CloudRunGpuService", "gcp:cloudrunv2/service:Service"),
        ("TpuQueuedResource", "gcp-tpu:index:QueuedResource"),
        ("ModelBucket", "gcp:storage/bucket:Bucket"),
        ("HuggingFaceToken", SECRET),
    }


def test_the_resources_of_a_component_come_after_what_it_depends_on(consumer):
    order = [one["name"] for one in consumer[1] if one["type"] == SECRET]
    assert order.index("late") < min(order.index("import-depends_on"), order.index("package-depends_on"))


def test_an_alias_of_a_component_renames_its_resources_too(consumer):
    run, _ = consumer
    run("up", "--yes", "--skip-preview", program=BEFORE)
    steps = json.loads(run("preview", "--json", program=AFTER).out)["steps"]
    assert {step["op"] for step in steps} == {"same"}


def test_the_page_has_the_same_table():
    text = (ROOT / "docs" / "package.md").read_text().partition("## Resource options\n")[2].partition("\n## ")[0]
    stated = {
        key: reach
        for keys, reach in re.findall(r"^\| (`.*?) \| ([a-z ]+) \|", text, re.MULTILINE)
        for key in re.findall(r"`(\w+)`", keys)
    }
    assert stated == {**REACH, **dict.fromkeys(WITH_THE_COMPONENT, "with the component")}

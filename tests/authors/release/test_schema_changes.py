"""Changes between two package schemas: each kind is found, and judged by what it does to a program."""

import copy
import json
import random
import subprocess
from pathlib import Path

import pytest

from authors.release import schema_changes
from authors.release.__main__ import COMMAND
from contracts.errors import ScriptError
from scripts.cli.command import run_command

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "packages" / "gcp-tpu" / "schema.json"
R, T, E, F = "p:index:Server", "p:index:Disk", "p:index:Mode", "p:index:getServer"


def base():
    """A schema with one of each: a resource, an object, an enum, a function, a setting of the provider."""
    return {
        "name": "p",
        "version": "0.1.0",
        "language": {"nodejs": {"packageName": "@a/p"}, "python": {"pyproject": {"enabled": True}}},
        "config": {"variables": {"project": {"type": "string"}}},
        "provider": {"inputProperties": {"project": {"type": "string"}}},
        "types": {
            T: {"type": "object", "properties": {"source": {"type": "string"}, "mode": {"$ref": f"#/types/{E}"}}, "required": ["source"]},
            E: {"type": "string", "enum": [{"name": "Read", "value": "r"}, {"name": "Write", "value": "w"}]},
        },
        "resources": {
            R: {
                "inputProperties": {
                    "name": {"type": "string", "description": "Its name."},
                    "size": {"type": "integer", "default": 1},
                    "zones": {"type": "array", "items": {"type": "string"}},
                    "disk": {"$ref": f"#/types/{T}"},
                    "key": {"type": "string", "secret": True},
                },
                "requiredInputs": ["name"],
                "properties": {"name": {"type": "string"}, "ip": {"type": "string"}, "state": {"type": "string"}},
                "required": ["name", "ip"],
                "aliases": [{"type": "p:index:Machine"}],
            }
        },
        "functions": {
            F: {
                "inputs": {"properties": {"id": {"type": "string"}}},
                "outputs": {"properties": {"ip": {"type": "string"}}, "required": ["ip"]},
            }
        },
    }  # fmt: skip


def at(schema, path):
    for part in path:
        schema = schema[part]
    return schema


IN, OUT = ("resources", R, "inputProperties"), ("resources", R, "properties")
BREAKING = {
    "resource removed": lambda s: s["resources"].pop(R),
    "function removed": lambda s: s["functions"].pop(F),
    "type removed": lambda s: s["types"].pop(T),
    "input removed": lambda s: at(s, IN).pop("size"),
    "output removed": lambda s: at(s, OUT).pop("state"),
    "property removed": lambda s: at(s, ("types", T, "properties")).pop("mode"),
    "input type changed": lambda s: at(s, IN)["size"].update(type="number"),
    "output type changed": lambda s: at(s, OUT)["ip"].update(type="integer"),
    "input became required": lambda s: s["resources"][R]["requiredInputs"].append("size"),
    "required input added": lambda s: (at(s, IN).update(new={"type": "string"}), s["resources"][R]["requiredInputs"].append("new")),
    "property became required": lambda s: s["types"][T]["required"].append("mode"),
    "property became optional": lambda s: s["types"][T]["required"].remove("source"),
    "output became optional": lambda s: s["resources"][R]["required"].remove("ip"),
    "input default changed": lambda s: at(s, IN)["size"].update(default=2),
    "input defaultInfo changed": lambda s: at(s, IN)["name"].update(defaultInfo={"environment": ["NAME"]}),
    "input const changed": lambda s: at(s, IN)["name"].update(const="x"),
    "input plain changed": lambda s: at(s, IN)["zones"]["items"].update(plain=True),
    "input replaceOnChanges changed": lambda s: at(s, IN)["size"].update(replaceOnChanges=True),
    "input secret changed": lambda s: at(s, IN)["key"].pop("secret"),
    "enum value removed": lambda s: s["types"][E]["enum"].pop(),
    "enum name changed": lambda s: s["types"][E]["enum"][0].update(name="ReadOnly"),
    "alias removed": lambda s: s["resources"][R].pop("aliases"),
    "isComponent changed": lambda s: s["resources"][R].update(isComponent=True),
    "arguments removed": lambda s: s["functions"][F].pop("inputs"),
    "packageName changed": lambda s: s["language"]["nodejs"].update(packageName="@b/p"),
    "name changed": lambda s: s.update(name="q"),
}  # fmt: skip
HARMLESS = {
    "resource added": lambda s: s["resources"].update({"p:index:New": {}}),
    "function added": lambda s: s["functions"].update({"p:index:getNew": {}}),
    "type added": lambda s: s["types"].update({"p:index:New": {"type": "object"}}),
    "input added": lambda s: at(s, IN).update(new={"type": "string"}),
    "output added": lambda s: at(s, OUT).update(new={"type": "string"}),
    "input became optional": lambda s: s["resources"][R]["requiredInputs"].clear(),
    "output became required": lambda s: s["resources"][R]["required"].append("state"),
    "enum value added": lambda s: s["types"][E]["enum"].append({"value": "x"}),
    "alias added": lambda s: s["resources"][R]["aliases"].append({"type": "p:index:Old"}),
    "input secret changed": lambda s: at(s, IN)["name"].update(secret=True),
    "description changed": lambda s: at(s, IN)["name"].update(description="The name."),
    "deprecationMessage changed": lambda s: at(s, IN)["size"].update(deprecationMessage="Use zones."),
    "pyproject changed": lambda s: s["language"]["python"].pop("pyproject"),
    "version changed": lambda s: s.update(version="0.2.0"),
}


def test_each_kind_of_change_is_found_and_judged(subtests):
    for rows, breaks in ((BREAKING, True), (HARMLESS, False)):
        for kind, edit in rows.items():
            with subtests.test(kind, breaks=breaks):
                new = base()
                edit(new)
                found = [(change.kind, change.is_breaking) for change in schema_changes.changes(base(), new)]
                assert (kind, breaks) in found
                assert breaks or not any(is_breaking for _, is_breaking in found)
    assert list(schema_changes.changes(base(), base())) == []


def leaves(node, path=()):
    """Yield the path of every value that is neither an object nor a list."""
    if not isinstance(node, (dict, list)):
        yield path
        return
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield from leaves(value, (*path, key))


def test_no_difference_of_the_providers_schema_is_missed():
    """Each value of the real schema in turn is another one, or gone: something is reported."""
    schema = json.loads(SCHEMA.read_text())
    paths = list(leaves(schema))
    assert len(paths) > 290
    for path in random.Random(0).sample(paths, 150):  # noqa: S311 - a fixed choice
        for edit in (lambda owner, key: owner.__setitem__(key, "planted"), lambda owner, key: owner.__delitem__(key)):
            new = copy.deepcopy(schema)
            edit(at(new, path[:-1]), path[-1])
            assert schema_changes.changes(schema, new), path


def test_the_gate_follows_the_version(tmp_path, capsys, monkeypatch, subtests):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    allowed = [("0.1.0", "0.2.0"), ("1.1.0", "2.0.0"), ("0.9.0", "1.0.0")]
    refused = [("0.1.0", "0.1.1"), ("1.1.0", "1.2.0"), ("0.1.0", "0.1.0")]
    rows = [*((old, new, 0) for old, new in allowed), *((old, new, 1) for old, new in refused)]
    for old, new, code in rows:
        with subtests.test(f"{old} to {new}"):
            schemas = [{**base(), "version": old}, {**base(), "version": new}]
            schemas[1]["types"].pop(E)
            files = [tmp_path / "old.json", tmp_path / "new.json"]
            for file, schema in zip(files, schemas, strict=True):
                file.write_text(json.dumps(schema))
            words = ["schema-diff", "--old", str(files[0]), "--new", str(files[1])]
            assert run_command(COMMAND, words) == 0
            assert f"BREAKING  type removed  {E}" in capsys.readouterr().out
            assert run_command(COMMAND, [*words, "--json"]) == 0
            (package,) = json.loads(capsys.readouterr().out)["packages"]
            assert (package["old"], package["new"], package["changes"][0]["kind"]) == (old, new, "type removed")
            assert run_command(COMMAND, [*words, "--gate"]) == code
            assert (f"{new} may not break programs of {old}" in capsys.readouterr().err) is bool(code)


def test_a_schema_comes_from_a_file_or_a_commit(tmp_path):
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    (tmp_path / "schema.json").write_text(json.dumps(base()))
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", *author, "commit", "-qm", "a"], cwd=tmp_path, check=True)
    assert schema_changes.read(tmp_path, "main", "schema.json") == base()
    same = schema_changes.compare(tmp_path, "main", None, "schema.json")
    assert same.text == "p 0.1.0 (main) -> 0.1.0: 0 changes, 0 breaking."
    (tmp_path / "other.json").write_text(json.dumps(base()))
    added = schema_changes.compare(tmp_path, "main", None, "other.json")
    assert (added.text, added.is_refused) == ("p 0.1.0: new since main.", False)
    with pytest.raises(ScriptError, match=r"^v9 is neither a file nor a commit\."):
        schema_changes.compare(tmp_path, "v9", None, "schema.json")
    with pytest.raises(ScriptError, match=r"^v9 is neither a file nor a commit with schema.json\."):
        schema_changes.read(tmp_path, "v9", "schema.json")
    with pytest.raises(ScriptError, match="is not JSON"):
        schema_changes.parsed("{", "x.json")
    with pytest.raises(ScriptError, match=r"^x.json has no `name`"):
        schema_changes.parsed("[]", "x.json")

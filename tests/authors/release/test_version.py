"""One version in every place, its section of the changelog, and the repository that is not named yet."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dev.authors.release import version
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError

ROOT = Path(__file__).parents[3]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture
def copy(tmp_path):
    """The files that state a version or the repository, alone."""
    for path in version.PLACES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_all_distributions_have_the_version_of_the_changelog_or_the_next_one():
    stated = version.the_version(ROOT)
    newest = version.released(CHANGELOG)
    major, minor, patch = map(int, newest.split("."))
    following = [(major, minor, patch + 1), (major, minor + 1, 0), (major + 1, 0, 0)]
    assert stated in {newest, *(".".join(map(str, numbers)) for numbers in following)}


def test_a_version_is_written_to_every_place_or_to_none(copy):
    assert len(version.set_version(copy, "7.8.9")) == len(version.PLACES)
    assert version.the_version(copy) == "7.8.9"
    assert version.set_version(copy, "7.8.9") == []
    first, *_, last = version.PLACES
    (copy / last).write_text("nothing here\n")
    with pytest.raises(ScriptError, match=f"^{re.escape(last)} has 0 values"):
        version.set_version(copy, "7.9.0")
    assert 'VERSION: Final = "7.8.9"' in (copy / first).read_text()
    for wrong in ("v1.0.0", "1.0", "1.0.0-rc1", "01.0.0", ""):
        with pytest.raises(CommandRefusedError, match="is not a version"):
            version.set_version(copy, wrong)


def test_no_other_page_states_the_version():
    words = ["git", "grep", "--files-with-matches", "--word-regexp", "--fixed-strings", version.the_version(ROOT)]
    own = [":!CHANGELOG.md", ":!dev/docs/releasing.md"]
    found = subprocess.run([*words, "--", "*.md", *own], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*found.stdout.split()} <= {*version.PLACES}


def test_versions_that_differ_are_named(copy):
    version.set_version(copy, "1.0.0")
    (copy / "packages/gcp-tpu/gcp_tpu_provider/__init__.py").write_text('VERSION = "1.0.1"\n')
    with pytest.raises(ScriptError, match=r"gcp_tpu_provider/__init__\.py: 1\.0\.1"):
        version.the_version(copy)


def test_tag_distributions_and_changelog_have_to_agree(copy, subtests):
    version.set_version(copy, "1.2.0")
    good = "# Changelog\n\n## Unreleased\n\n- x\n\n## 1.2.0 (2026-01-02)\n\n- y\n"
    assert version.check_release(copy, "v1.2.0", good) == "1.2.0"
    rows = {
        "another tag": ("v1.2.1", good, "The tag is 'v1.2.1', but the distributions have version 1.2.0"),
        "a tag without v": ("1.2.0", good, "The tag is '1.2.0'"),
        "an older section": ("v1.2.0", good.replace("1.2.0", "1.1.0"), "The newest released section of CHANGELOG.md is 1.1.0"),
        "a section without date": ("v1.2.0", "## 1.2.0\n", "has no heading"),
    }  # fmt: skip
    for name, (tag, text, message) in rows.items():
        with subtests.test(name), pytest.raises(ScriptError, match=re.escape(message)):
            version.check_release(copy, tag, text)


def test_notes_are_the_section_with_links_that_work_outside_the_repository():
    text = "# C\n\n## 2.0.0 (2026-01-02)\n\n- See [a](docs/a.md#b), [c](https://x.y/z).\n\n## 1.0.0 (2026-01-01)\n\n- old\n"
    assert version.notes(text, "2.0.0", "o/n") == (
        "- See [a](https://github.com/o/n/blob/v2.0.0/docs/a.md#b), [c](https://x.y/z).\n"
    )
    assert version.notes(text, "1.0.0", "o/n") == "- old\n"
    empty = "## 1.0.0 (2026-01-01)\n\n## 0.9.0 (2026-01-01)\n"
    for changelog, asked in ((text, "3.0.0"), ("## 1.0.0\n\n- x\n", "1.0.0"), (empty, "1.0.0")):
        with pytest.raises(ScriptError, match=rf"has no section `## {asked} \(YYYY-MM-DD\)` with text"):
            version.notes(changelog, asked, "o/n")


def test_the_address_of_the_repository_is_in_the_two_schemas_only():
    named = version.repository(ROOT)
    words = ["git", "grep", "--files-with-matches", "--fixed-strings", named, "--", ":!dev/docs/releasing.md"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert found == [version.SCHEMA, "stacks/package/package.json"]  # tests/stacks/test_package.py: they agree


def test_a_page_gets_addresses_that_work_outside_the_repository():
    page = "[a](../../docs/a.md#b) [c](docs/c.md) [d](#e) [f](https://x.y/z)"
    assert version.with_addresses(page, "https://r/blob/v1", "packages/one") == (
        "[a](https://r/blob/v1/docs/a.md#b) [c](https://r/blob/v1/packages/one/docs/c.md) [d](#e) [f](https://x.y/z)"
    )

"""docs/ci.md: its first change of a settings file exists, and the comment on it has the lines that the page shows."""

import re
import shutil
import subprocess

from gemma_serving.scripts.preview.comment import comment
from gemma_serving.scripts.preview.plans import describe_checkout
from tests.tools.ci_page import PAGE, ROOT


def test_the_page_shows_lines_of_the_comment_on_its_change(tmp_path):
    first = PAGE.partition("\n## Workflows\n")[0]
    assert len(first.splitlines()) <= 40, "the shortest path is short"
    (change, file), (shown,) = (
        *re.findall(r"sed -i\.bak '(.*)' (\S+)", first),
        re.findall(r"```text\n(.*?)```", first, re.DOTALL),
    )
    shutil.copy(ROOT / "Pulumi.yaml", tmp_path)
    _, old, new, _ = change.split("/")
    # A reader's pull request makes the change of the page, and its tests run too.
    (tmp_path / file).write_text((ROOT / file).read_text().replace(new, old))
    before = describe_checkout(tmp_path)
    subprocess.run(["sed", "-i.bak", change, file], cwd=tmp_path, check=True)
    text = comment(before, describe_checkout(tmp_path), ()).splitlines()
    assert [line for line in shown.splitlines() if line.strip() not in {*text, "..."}] == []

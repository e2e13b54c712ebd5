"""The page of settings is what the models say, and every setting says what it is for."""

from pathlib import Path

from stacks.reference import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m stacks.reference > docs/settings.md"


def test_every_setting_has_a_meaning_and_a_type():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    for row in rows:
        _, key, kind, default, meaning, *_ = [cell.strip() for cell in row.split("|")]
        assert key
        assert kind, row
        assert default, row
        assert len(meaning) > 10, row

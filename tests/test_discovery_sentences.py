"""Each rule that Google's documents state for a method that we call is enforced by the local cloud or listed as not modelled."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from localcloud.ledger.entries import join, load
from localcloud.rest.stated_rules import REQUEST_ID
from localcloud.rest.stated_rules import rules as stated_rules
from tests.discovery_rules import rules, sent

ROOT = Path(__file__).parents[1]


def in_code():
    return {rule.sentence for rules_of in stated_rules().values() for rule in rules_of} | {REQUEST_ID}


def enforced(ledger):
    return in_code() | {quote for entry in ledger.enforced for quote in entry.quotes}


def listed(ledger):
    """The sentences that are listed: by their words, or because no request sends any of the fields that they describe."""
    quotes = {quote for entry in ledger.not_modelled for quote in entry.quotes}
    patterns = [pattern for entry in ledger.not_modelled for pattern in entry.unsent]
    unsent = {
        sentence
        for sentence, places in rules().items()
        if all(any(fnmatchcase(place, pattern) for pattern in patterns) for place in places)
    }
    return quotes | unsent


def unaccounted(ledger):
    known = enforced(ledger) | listed(ledger)
    return {sentence: places for sentence, places in rules().items() if sentence not in known}


def test_every_rule_is_enforced_or_listed():
    assert unaccounted(load()) == {}, (
        "quote it in enforced.toml of packages/localcloud/ledger, or list it in not_modelled.toml"
    )


def test_no_rule_is_both():
    ledger = load()
    assert enforced(ledger) & listed(ledger) == set(), "take it out of not_modelled.toml"


def test_every_quote_stands_in_a_document():
    ledger = load()
    quotes = enforced(ledger) | {quote for entry in ledger.not_modelled for quote in entry.quotes}
    assert sorted(quotes - set(rules())) == []


def test_no_request_sends_a_field_that_is_listed_as_unsent():
    fields = sent()
    assert len(fields) > 200
    for entry in load().not_modelled:
        for pattern in entry.unsent:
            assert [field for field in fields if fnmatchcase(field, pattern)] == [], entry.id
            assert any(fnmatchcase(place, pattern) for places in rules().values() for place in places), pattern


@pytest.mark.parametrize("name", ["enforced.toml", "not_modelled.toml"])
def test_a_rule_whose_entry_is_removed_is_missed(name):
    folder = ROOT / "packages" / "localcloud" / "ledger"
    texts = {path.name: path.read_text() for path in folder.glob("*.toml")}
    kept = re.split(r"(?m)^(?=\[\[)", texts[name])
    quoting = next(part for part in kept if "\nquotes = [" in part)
    texts[name] = "".join(part for part in kept if part is not quoting)
    assert unaccounted(join(texts)) != {}

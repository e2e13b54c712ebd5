"""Values between the engine and the tables: nothing is lost, and no secret is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.plugins.values import (
    UNKNOWN,
    Secrets,
    SecretValue,
    UnsupportedValueError,
    conceal,
    from_struct,
    has_unknown,
    plain,
    to_struct,
)
from localcloud.tests.plugins.harness import SIGNATURE, secret
from localcloud.tests.plugins.harness import from_struct as as_json
from localcloud.tests.plugins.harness import to_struct as struct_of

SCALARS = st.one_of(
    st.booleans(),
    st.integers(min_value=-(2**53), max_value=2**53),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda each: not each.is_integer()),
    st.text(max_size=20),
    st.just(UNKNOWN),
)
NAMES = st.text(min_size=1, max_size=8).filter(lambda each: each != SIGNATURE)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3), st.builds(SecretValue, inner)
    ),
    max_leaves=12,
)
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=4)


@given(PROPERTIES)
def test_what_was_secret_is_secret_again_and_nothing_else_is_changed(properties):
    bare, secrets = plain(properties)
    again, places = plain(conceal(bare, secrets))
    assert again == bare
    for path in secrets.paths:
        assert any(path[:length] in places.paths for length in range(1, len(path) + 1))


def test_a_secret_that_moved_is_found_by_its_text():
    _, secrets = plain({"template": {"envs": [{"value": SecretValue("hf_canary")}]}})
    assert conceal({"elsewhere": ["hf_canary", "other"]}, secrets) == {"elsewhere": [SecretValue("hf_canary"), "other"]}


def test_short_secrets_are_hidden_by_place_only():
    bare, secrets = plain({"flag": SecretValue("1"), "count": "1"})
    assert conceal(bare, secrets) == {"flag": SecretValue("1"), "count": "1"}


def test_no_representation_shows_a_secret():
    bare, secrets = plain({"token": SecretValue("hf_canary")})
    assert bare == {"token": "hf_canary"}
    assert "hf_canary" not in repr(secrets) + repr(SecretValue("hf_canary")) + str(Secrets())


def test_unknowns_are_found_at_any_depth():
    assert has_unknown({"a": [{"b": SecretValue(UNKNOWN)}]})
    assert not has_unknown({"a": [{"b": "c"}]})


def test_secrets_are_marked_as_the_engine_marks_them():
    assert as_json(to_struct({"token": SecretValue("x")})) == {"token": secret("x")}


def test_an_output_value_counts_as_unknown_until_it_has_one():
    marker = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
    assert from_struct(struct_of({"a": {SIGNATURE: marker, "secret": True}})) == {"a": SecretValue(UNKNOWN)}


@pytest.mark.parametrize(
    ("signature", "kind"),
    [("0def7320c3a5731c473e5ecbe6d01bc7", "an archive"), ("c44067f5952c0a294b673a41bacd8c17", "an asset")],
)
def test_archives_and_assets_are_refused_by_name(signature, kind):
    with pytest.raises(UnsupportedValueError, match=f"do not support {kind}"):
        from_struct(struct_of({"source": {SIGNATURE: signature, "path": "x"}}))

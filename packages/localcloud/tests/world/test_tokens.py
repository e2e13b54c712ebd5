"""Tokens: only those that this cloud signed, for their purpose and until their end."""

import base64
import json
import time

import jwt
import pytest

from localcloud.world.oauth import TokenError, Tokens, new_private_key, public_key

EMAIL, URL = "a@example.com", "https://a.example"
SIGNATURE, SHORT_LIVED = "Invalid JWT Signature.", "Token must be a short-lived token (60 minutes)"


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path)


def unsigned(token, alg="none"):
    """Return a token with the same claims, no signature and this algorithm in its header."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": alg, "typ": "JWT"}).encode()).rstrip(b"=").decode()
    return f"{header}.{token.split('.')[1]}."


def test_an_id_token_is_valid_until_its_end_and_only_with_the_signature_of_this_cloud(tokens, tmp_path):
    good = tokens.issue_id_token(EMAIL, URL)
    assert tokens.id_token(good).email == EMAIL
    assert Tokens(tmp_path).id_token(good).audience == URL, "the keys survive a restart"
    claims = jwt.decode(good, options={"verify_signature": False})
    (tmp_path / "other").mkdir()
    refused = {
        "no signature": unsigned(good),
        "no signature, claimed": unsigned(good, "RS256"),
        "another key": Tokens(tmp_path / "other").issue_id_token(EMAIL, URL),
        "another algorithm": jwt.encode(claims, "k" * 32, algorithm="HS256"),
        "expired": Tokens(tmp_path, lambda: 0).issue_id_token(EMAIL, URL),
        "an access token": tokens.issue_access_token(EMAIL),
        "no token": "x.y",
        "bytes that are not UTF-8": good + "\udce9",
    }
    assert {name: tokens.id_token(token) for name, token in refused.items()} == dict.fromkeys(refused)


def test_access_and_refresh_tokens_do_not_pass_as_each_other(tokens):
    access, refresh = tokens.issue_access_token(EMAIL), tokens.issue_refresh_token(EMAIL)
    assert tokens.access_token_email(access) == EMAIL
    assert tokens.access_token_email(tokens.refresh(refresh)["access_token"]) == EMAIL
    bare_access, bare_refresh = access.removeprefix("ya29.local."), refresh.removeprefix("1//local.")
    others = (
        f"ya29.local.{bare_refresh}",
        f"ya29.local.{unsigned(bare_access)}",
        bare_access,
        refresh,
        access + "\udce9",
    )
    assert [tokens.access_token_email(token) for token in others] == [None] * 5
    for token in (access, bare_refresh, f"1//local.{bare_access}", f"1//local.{unsigned(bare_refresh)}"):
        with pytest.raises(TokenError, match=r"^Bad Request$"):
            tokens.refresh(token)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"exp": -1}, SHORT_LIVED),
        ({"iat": 3600, "exp": 7200}, SHORT_LIVED),
        ({"exp": None}, SHORT_LIVED),
        ({"iat": None}, SHORT_LIVED),
        ({"iat": 200}, None),
    ],
)
def test_an_assertion_is_short_lived(tokens, changed, message):
    """A clock that is 5 minutes ahead is accepted."""
    key, now = new_private_key(), int(time.time())
    times = {name: now + after for name, after in {"iat": 0, "exp": 3600, **changed}.items() if after is not None}
    assertion = jwt.encode({"iss": EMAIL, **times}, key, algorithm="RS256")
    if message is None:
        assert tokens.access_token_email(tokens.grant(assertion, public_key(key))["access_token"]) == EMAIL
        return
    with pytest.raises(TokenError) as refused:
        tokens.grant(assertion, public_key(key))
    assert (refused.value.error, message in refused.value.description) == ("invalid_grant", True)


def test_an_assertion_without_the_signature_of_its_account_is_refused(tokens):
    key, now = new_private_key(), int(time.time())
    claims = {"iss": EMAIL, "iat": now, "exp": now + 3600}
    good = jwt.encode(claims, key, algorithm="RS256")
    forged = jwt.encode(claims, new_private_key(), algorithm="RS256")
    for assertion in (unsigned(good), unsigned(good, "RS256"), forged, "e30.e30.x", ""):
        with pytest.raises(TokenError, match=f"^{SIGNATURE}$"):
            tokens.grant(assertion, public_key(key))

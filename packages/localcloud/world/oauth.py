"""Credentials of the local cloud: service account keys, access tokens and ID tokens.

All are JSON web tokens, signed with keys of the state folder, so they survive a restart: ID tokens with RS256 as Google's are; access and refresh
tokens with HS256, behind the prefixes of Google's tokens.
"""

import hashlib
import json
import secrets
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, cast

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from localcloud.json_values import JsonObject

ACCESS_TOKEN_LIFETIME_S = 3600
ID_TOKEN_LIFETIME_S = 3600
_PREFIX = "ya29.local."
_REFRESH_PREFIX = "1//local."
REFRESH = "refresh_token"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_NOT_SHORT_LIVED: Final = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
_CLOCK_SKEW_S: Final = 300
_INVALID: Final = (jwt.InvalidTokenError, UnicodeEncodeError)
"""Errors of PyJWT for a token that is not valid. The second one: bytes of a header that are not UTF-8."""

# The keys are short on purpose: see new_private_key.
warnings.filterwarnings("ignore", category=jwt.InsecureKeyLengthWarning)


class TokenError(Exception):
    """A rejected assertion. `error` is OAuth's error code."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error
        self.description = description


@dataclass(frozen=True, slots=True, kw_only=True)
class IdToken:
    """The claims of a valid ID token."""

    email: str
    audience: str


class Tokens:
    """Issues and checks tokens; the keys are in the state folder."""

    def __init__(self, state: Path, id_token_lifetime_s: Callable[[], float] = lambda: ID_TOKEN_LIFETIME_S) -> None:
        """Use the keys in the folder `state`. They are created on first use."""
        self._state = state
        self._id_token_lifetime_s = id_token_lifetime_s

    def issue_access_token(self, email: str, lifetime_s: float = ACCESS_TOKEN_LIFETIME_S) -> str:
        """Return a new access token of a service account or user."""
        return self._signed(_PREFIX, {"sub": email, "exp": int(time.time() + lifetime_s)})

    def issue_refresh_token(self, email: str) -> str:
        """Return a new refresh token of a user. It does not expire."""
        return self._signed(_REFRESH_PREFIX, {"sub": email})

    def issue_id_token(self, email: str, audience: str) -> str:
        """Return a new ID token for a service's URL, valid for an hour or the scenario's shorter lifetime."""
        now = int(time.time())
        subject = str(int.from_bytes(hashlib.sha256(email.encode()).digest()[:8], "big"))
        claims = {
            "iss": "https://accounts.google.com",
            "aud": audience,
            "azp": email,
            "sub": subject,
            "email": email,
            "email_verified": True,
            "iat": now,
            "exp": now + round(self._id_token_lifetime_s()),
        }
        return jwt.encode(claims, self._signing_key, algorithm="RS256", headers={"kid": "local"})

    def access_token_email(self, token: str) -> str | None:
        """Return the owner of an access token, or None if it was not issued here or has expired."""
        return self._owner(_PREFIX, token)

    def id_token(self, token: str) -> IdToken | None:
        """Return the claims of an ID token, or None if it was not issued here or has expired."""
        try:
            key = self._signing_key.public_key()
            claims = jwt.decode(token, key, algorithms=["RS256"], options={"verify_aud": False})
        except _INVALID:
            return None
        return IdToken(email=str(claims["email"]), audience=str(claims["aud"]))

    def grant(self, assertion: str, public_key_pem: str) -> JsonObject:
        """Return the token for a JWT-bearer assertion: an ID token if it has a target_audience, otherwise an access token. Raises TokenError."""
        try:
            claims = jwt.decode(
                assertion,
                public_key_pem,
                algorithms=["RS256"],
                options={"require": ["iss", "iat", "exp"], "verify_aud": False, "verify_iat": False},
            )
        except (jwt.ExpiredSignatureError, jwt.MissingRequiredClaimError):
            raise TokenError("invalid_grant", _NOT_SHORT_LIVED) from None
        except _INVALID:
            raise TokenError("invalid_grant", "Invalid JWT Signature.") from None
        if claims["iat"] > time.time() + _CLOCK_SKEW_S:
            raise TokenError("invalid_grant", _NOT_SHORT_LIVED)
        email = str(claims["iss"])
        if "target_audience" in claims:
            return {"id_token": self.issue_id_token(email, str(claims["target_audience"]))}
        return self._access(email)

    def refresh(self, token: str) -> JsonObject:
        """Return a new access token for a user's refresh token. Raises TokenError."""
        email = self._owner(_REFRESH_PREFIX, token)
        if email is None:
            raise TokenError("invalid_grant", "Bad Request")
        return self._access(email)

    def _access(self, email: str) -> JsonObject:
        token = self.issue_access_token(email)
        return {"access_token": token, "expires_in": ACCESS_TOKEN_LIFETIME_S, "token_type": "Bearer"}

    def _signed(self, prefix: str, claims: JsonObject) -> str:
        """Return an access or a refresh token. Its prefix is its audience too, so neither passes as the other."""
        return prefix + jwt.encode({**claims, "aud": prefix}, self._mac_key, algorithm="HS256")

    def _owner(self, prefix: str, token: str) -> str | None:
        """Return the owner of a token with this prefix, or None if it was not issued here or has expired."""
        if not token.startswith(prefix):
            return None
        try:
            claims = jwt.decode(token.removeprefix(prefix), self._mac_key, algorithms=["HS256"], audience=prefix)
        except _INVALID:
            return None
        return str(claims["sub"])

    @cached_property
    def _mac_key(self) -> bytes:
        path = self._state / "token-key"
        if not path.exists():
            _write_private(path, secrets.token_hex(32))
        return path.read_bytes()

    @cached_property
    def _signing_key(self) -> rsa.RSAPrivateKey:
        path = self._state / "signing-key.pem"
        if not path.exists():
            _write_private(path, new_private_key())
        return _loaded(path.read_bytes())


def assertion_issuer(assertion: str) -> str:
    """Return the `iss` of an assertion without verifying it."""
    try:
        return str(jwt.decode(assertion, options={"verify_signature": False})["iss"])
    except (KeyError, *_INVALID):
        raise TokenError("invalid_grant", "Invalid JWT: it has no issuer.") from None


def new_private_key() -> str:
    """Return a new RSA key (PKCS #8, PEM). It opens nothing but a simulation on the loopback address, and is made at every start."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - as above: a fifth of the time
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _loaded(pem: bytes) -> rsa.RSAPrivateKey:
    """Return a key that this module wrote, without checking its primes, which takes a third of a cloud's start time."""
    key = serialization.load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)
    return cast("rsa.RSAPrivateKey", key)


def public_key(private_key_pem: str) -> str:
    """Return the public key (PEM) of a private key."""
    return (
        _loaded(private_key_pem.encode())
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def credentials_file(path: Path, *, email: str, project: str, token_uri: str) -> str:
    """Write a service account file and return its public key (PEM). An existing file keeps its private key."""
    known = cast("JsonObject", json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    private = str(known.get("private_key") or new_private_key())
    document = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "local",
        "private_key": private,
        "client_email": email,
        "client_id": "0",
        "token_uri": token_uri,
    }
    _write_private(path, json.dumps(document, indent=1))
    return public_key(private)


def login_file(path: Path, refresh_token: str) -> Path:
    """Write the file that `gcloud auth application-default login` creates, without a quota project, and return its path."""
    document = {
        "account": "",
        "client_id": "764086051850-local.apps.googleusercontent.com",
        "client_secret": "local",
        "refresh_token": refresh_token,
        "type": "authorized_user",
        "universe_domain": "googleapis.com",
    }
    _write_private(path, json.dumps(document, indent=1))
    return path


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""Compare an answer with an entry: as assumed, differs, or unknown."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from localcloud.ledger.entries import Answer
from localcloud.trials.sending import ApiReply

Verdict = Literal["as assumed", "differs", "unknown"]
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and the answer on one line. `why` explains an unknown verdict."""

    verdict: Verdict
    answered: str
    why: str = ""


def judge(expected: Answer, reply: ApiReply) -> Judgement:
    """Return the verdict on an answer. An error with a cause other than the request is unknown."""
    answered = summary(reply)
    is_expected = reply.status == expected.status
    if is_expected and matches(expected.words, reply):
        return Judgement(verdict="as assumed", answered=answered)
    cause = _other_cause(reply)
    if cause:
        return Judgement(verdict="unknown", answered=answered, why=cause)
    if is_expected:
        return Judgement(
            verdict="unknown",
            answered=answered,
            why=f"the status is as expected, but nothing in the answer matches '{expected.words}'. Read the answer",
        )
    return Judgement(verdict="differs", answered=answered)


def matches(words: str, reply: ApiReply) -> bool:
    """Return whether an answer's body, or an error's message, matches a regular expression."""
    text = reply.message if reply.status >= 400 else f"{reply.body}"  # noqa: PLR2004 - HTTP's errors
    return re.search(words, text, re.IGNORECASE) is not None


def summary(reply: ApiReply) -> str:
    """Return an answer in one line."""
    where = " (operation)" if reply.is_of_operation else ""
    text = " ".join([str(reply.status), reply.reason, reply.message]) if reply.status else reply.message
    short = " ".join(text.split())
    return (short if len(short) <= _LONGEST else short[: _LONGEST - 3] + "...") + where


def _other_cause(reply: ApiReply) -> str:
    if reply.status == 0:
        return "no response"
    if reply.is_api_off:
        return "the API is disabled in this project; run `gcloud services enable`"
    if reply.status == 401:  # noqa: PLR2004 - HTTP
        return "the login was rejected"
    if reply.status == 403:  # noqa: PLR2004 - HTTP
        return "a permission, a quota or a policy of this project stopped the request first"
    if reply.status == 429 or reply.status >= 500:  # noqa: PLR2004 - HTTP
        return "the server was busy or the quota is used up; retry later"
    return ""

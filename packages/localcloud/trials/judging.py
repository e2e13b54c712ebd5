"""The verdict on the response that decides a trial."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from localcloud.trials.sending import ApiReply

_LONGEST: Final = 300
_AROUND: Final = 30
"""Characters of a line that are shown before and after its decisive part."""
Verdict = Literal["as assumed", "differs", "unknown", "tomorrow"]


@dataclass(frozen=True, slots=True)
class Expected:
    """The response that Google is assumed to return."""

    words: str
    """A regular expression that the response matches, ignoring case. Without it, another cause can have the same status."""
    status: int = 200
    refuted: str = ""
    """A regular expression for the response of any step that shows that the assumption is false. A response that matches neither is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and the answer on one line. `why` explains an unknown verdict."""

    verdict: Verdict
    answered: str
    why: str = ""


def judge(expected: Expected, reply: ApiReply) -> Judgement:
    """Return the verdict on an answer. An error with a cause other than the request is unknown."""
    answered = reply.summary
    is_expected = reply.status == expected.status
    refuted = refuting(expected, reply)
    # An error's words are sought in its message alone, so they can be there although its body refutes the entry.
    is_error = reply.status >= 400  # noqa: PLR2004 - HTTP's errors
    if is_expected and matches(expected.words, reply) and not (refuted and is_error):
        return Judgement(verdict="as assumed", answered=shown(expected.words, reply) if expected.refuted else answered)
    if refuted:
        return Judgement(verdict="differs", answered=refuted)
    cause = _other_cause(reply)
    if cause:
        return Judgement(verdict="unknown", answered=answered, why=cause)
    if expected.refuted and not is_expected:
        why = f"expected the status {expected.status} and no other cause. Read the answer"
        return Judgement(verdict="unknown", answered=answered, why=why)
    if is_expected:
        return Judgement(
            verdict="unknown",
            answered=answered,
            why=f"the status is as expected, but nothing in the answer matches '{expected.words}'. Read the answer",
        )
    return Judgement(verdict="differs", answered=answered)


def refuting(expected: Expected, reply: ApiReply) -> str:
    """Return the line of a response that shows that the assumption is false, or an empty text."""
    return shown(expected.refuted, reply) if expected.refuted else ""


def matches(words: str, reply: ApiReply) -> bool:
    """Return whether a response's body, or an error's message, matches a regular expression."""
    text = reply.message if reply.status >= 400 else f"{reply.body}"  # noqa: PLR2004 - HTTP's errors
    return re.search(words, text, re.IGNORECASE) is not None


def shown(words: str, reply: ApiReply) -> str:
    """Return the line of a response's body or message that matches a regular expression, or an empty text."""
    for text in (reply.message, f"{reply.body}"):
        found = re.search(words, text, re.IGNORECASE)
        if found is not None:
            begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            line = text[max(begin, found.start() - _AROUND) : len(text) if end < 0 else min(end, found.end() + _AROUND)]
            return " ".join(line.split())[:_LONGEST]
    return ""


def _other_cause(reply: ApiReply) -> str:
    if reply.status == 0:
        return "the command failed" if reply.body else "no response"
    if reply.is_api_off:
        return "the API is disabled in this project; run `gcloud services enable`"
    if reply.status == 401:  # noqa: PLR2004 - HTTP
        return "the login was rejected"
    if reply.status == 403:  # noqa: PLR2004 - HTTP
        return "a permission, a quota or a policy of this project stopped the request first"
    if reply.status == 429 or reply.status >= 500:  # noqa: PLR2004 - HTTP
        return "the server was busy or the quota is used up; retry later"
    return ""

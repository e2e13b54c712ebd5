"""Public interface of `scripts.capacity` for other commands: the judge of places."""

from gemma_serving.scripts.capacity.places import JudgedForm, JudgedPlace, QuotaCheck, judge, judge_quota, question_of

__all__ = ["JudgedForm", "JudgedPlace", "QuotaCheck", "judge", "judge_quota", "question_of"]

"""The planner's one error."""


class PlanningError(ValueError):
    """A deployment that cannot be planned: an unknown name or a contradiction.

    The message is one sentence for people: the key, the value, what is allowed.
    """

"""The planner's one error."""


class PlanningError(ValueError):
    """A deployment that cannot be planned: an unknown name or a conflict.

    The message is one readable sentence: the key, the value, the allowed values.
    """

"""The planner's one error."""


class PlanningError(ValueError):
    """A deployment that cannot be planned: one readable sentence with the key, the value and the allowed values."""

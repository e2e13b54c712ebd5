"""How a component refuses its arguments."""


class ComponentError(ValueError):
    """An argument cannot work on the platform; the message is one sentence that names the limit. Raised before any resource is declared."""

"""The error of components."""


class ComponentError(ValueError):
    """An argument cannot work on the platform. The message is one sentence that names the limit.

    Components raise it before they declare any resource.
    """

"""Remove the locks of a stack from a local backend, for when the engine does not run or has nothing to do."""

from contracts.labels import PRODUCT
from engine.state import backend_folder


def remove_from_backend(stack: str) -> None:
    """Remove the locks of a stack from a local backend, as `pulumi cancel` does."""
    backend = backend_folder()
    if backend is not None:
        for path in (backend / "locks" / "organization" / PRODUCT / stack).glob("*.json"):
            path.unlink(missing_ok=True)

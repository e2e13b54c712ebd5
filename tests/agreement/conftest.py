"""The clouds of the local cloud's own suite, for what is compared with the product."""

from localcloud.tests.conftest import client, own_client, own_cloud, shared_cloud

__all__ = ["client", "own_client", "own_cloud", "shared_cloud"]

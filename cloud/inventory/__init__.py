"""Find the resources of this product in the cloud: by the API's own lists of places, by labels, descriptions and IAM members.

`search.search(api, scope)` returns an `Inventory`: every `FoundResource`, every list call, and what could not be read.
"""

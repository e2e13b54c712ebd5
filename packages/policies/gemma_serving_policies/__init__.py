"""Five rules for Pulumi programs on Google Cloud, as functions of a resource's type and inputs.

Imports the standard library only. `__main__.py`, beside this package, connects the rules to the policy SDK.
"""

from typing import Final

from gemma_serving_policies import allowed_regions, external_addresses, image_by_digest, public_access, run_limit
from gemma_serving_policies.rule import Rule

RULES: Final[tuple[Rule, ...]] = (
    public_access.RULE,
    image_by_digest.RULE,
    run_limit.RULE,
    allowed_regions.RULE,
    external_addresses.RULE,
)

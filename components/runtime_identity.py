"""The service account that the server runs as: no key, and only the roles that it is given."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from components.ownership import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeIdentityArgs:
    """`account_id` has 6 to 30 characters. `project_roles` are for what has no resource to grant on, such as writing logs."""

    project: str
    account_id: str
    ownership: Ownership
    project_roles: Sequence[str] = ()


class RuntimeIdentity(pulumi.ComponentResource):
    """A service account without keys. Grants on single resources are made by the components that own those resources."""

    email: pulumi.Output[str]
    member: pulumi.Output[str]
    grants: list[pulumi.Resource]
    """Project-level grants: what starts with this identity should depend on them."""

    def __init__(self, name: str, args: RuntimeIdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:RuntimeIdentity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        account = gcp.serviceaccount.Account(
            name,
            account_id=args.account_id,
            project=args.project,
            display_name=f"vLLM server of stack {args.ownership.stack}",
            description=args.ownership.description,
            opts=child,
        )
        self.email = account.email
        self.member = account.email.apply(lambda email: f"serviceAccount:{email}")
        self.grants = [
            gcp.projects.IAMMember(
                f"{name}-{role.rpartition('/')[2]}",
                project=args.project,
                role=role,
                member=self.member,
                opts=child,
            )
            for role in args.project_roles
        ]
        self.register_outputs({"email": self.email})

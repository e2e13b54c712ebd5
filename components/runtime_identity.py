"""Service account of the server: without keys, and only with the roles listed here."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from gemma_serving.contracts.labels import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeIdentityArgs:
    """A service account and its roles on the project."""

    project: str
    account_id: str
    """Id of the account, 6 to 30 characters. A change replaces the account and the resources that run as it."""
    ownership: Ownership
    project_roles: Sequence[str] = ()
    """Roles on the whole project. Use them only if no single resource can be granted on, such as for writing logs."""


class RuntimeIdentity:
    """A service account without keys. Grants on a resource are created by the component that owns the resource."""

    email: pulumi.Output[str]
    name: pulumi.Output[str]
    """projects/P/serviceAccounts/EMAIL."""
    member: pulumi.Output[str]
    grants: list[pulumi.Resource]
    """Grants on the project. Resources that run as this account should depend on them."""

    def __init__(self, name: str, args: RuntimeIdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        account = gcp.serviceaccount.Account(
            name,
            gcp.serviceaccount.AccountArgs(
                account_id=args.account_id,
                project=args.project,
                display_name=f"vLLM server of stack {args.ownership.stack}",
                description=args.ownership.description,
                # The record of the stack's runs is added to it (contracts.run_record). An update must not remove it, nor a refresh show it.
            ),
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(ignore_changes=["description"])),
        )
        self.email, self.name = account.email, account.name
        self.member = account.email.apply(lambda email: f"serviceAccount:{email}")
        self.grants = [
            gcp.projects.IAMMember(
                f"{name}-{role.rpartition('/')[2]}",
                gcp.projects.IAMMemberArgs(
                    project=args.project,
                    role=role,
                    member=self.member,
                ),
                opts=opts,
            )
            for role in args.project_roles
        ]

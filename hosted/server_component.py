"""Common part of both components: their options, and the outputs of their server."""

from collections.abc import Mapping
from typing import Any

import pulumi

from contracts.fields import to_json
from contracts.outputs import StackOutputs
from contracts.resource_types import CAPACITY_TYPE
from hosted import NAME, VERSION
from hosted.kinds import Kind
from hosted.publication import PLUGIN_DOWNLOAD_URL
from hosted.server import declared_server, planned_server
from stacks.scope import BoundHooks, ServerScope


class ServerComponent(pulumi.ComponentResource):
    """A component around the resources of one server."""

    def __init__(self, kind: Kind, name: str, args: Mapping[str, Any], opts: pulumi.ResourceOptions | None) -> None:
        """Plan the server, then declare the component and its resources. Raises RefusedError, in most cases before anything is declared."""
        hooks = BoundHooks()
        planned = planned_server(kind, name, args, ServerScope(component=name, parent=self, hooks=hooks))
        own = pulumi.ResourceOptions(transformations=[hooks.apply, _of_this_release])
        super().__init__(f"{NAME}:index:{kind.name}", name, {}, pulumi.ResourceOptions.merge(opts, own))
        self._take(declared_server(planned))

    def _take(self, outputs: StackOutputs) -> None:
        """Take the outputs of the server as properties of the component."""
        common = {
            "endpoint": outputs.endpoint,
            "served_model": outputs.served_model,
            "image": outputs.image,
            "usd_per_hour": outputs.plan.cost.usd_per_hour,
            "plan": to_json(outputs.plan),
        }
        for name, value in {**common, **self._outputs(outputs)}.items():
            setattr(self, name, pulumi.Output.from_input(value))
        self.register_outputs({})

    def _outputs(self, outputs: StackOutputs) -> Mapping[str, object]:
        """Return the outputs that only this target has, by name."""
        del outputs
        return {}


def _of_this_release(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
    """Let the engine use the provider of this release for the capacity, and name the place of its plugin if it is not installed."""
    if args.type_ != CAPACITY_TYPE:
        return None
    provider = pulumi.ResourceOptions(version=VERSION, plugin_download_url=PLUGIN_DOWNLOAD_URL)
    return pulumi.ResourceTransformationResult(props=args.props, opts=pulumi.ResourceOptions.merge(args.opts, provider))

"""Serve a Gemma 4 model on a Cloud TPU."""

import pulumi
import pulumi_gemma_serving as gemma_serving

config = pulumi.Config()
server = gemma_serving.TpuServer(
    "server",
    project=pulumi.Config("gcp").require("project"),
    model=config.require("model"),
    accelerator=config.require("accelerator"),
    zones=[zone.strip() for zone in config.require("zones").split(",")],
    max_run_duration=config.require("maxRunDuration"),
    hf_token=config.get_secret("hfToken"),
)

pulumi.export("endpoint", server.endpoint)
pulumi.export("tunnelCommand", server.tunnel_command)
pulumi.export("model", server.served_model)
pulumi.export("deadline", server.deadline)
pulumi.export("usdPerHour", server.usd_per_hour)

"""The component of a GKE target, with the objects of a file."""

import json
from pathlib import Path

import pulumi

from gemma_serving.components.gke_model_server import GkeModelServer, GkeModelServerArgs

config = pulumi.Config()
objects = json.loads(Path(config.require("objects")).read_text(encoding="utf-8"))
GkeModelServer("server", GkeModelServerArgs(context="judge", namespace=config.require("namespace"), objects=objects))

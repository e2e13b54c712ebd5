// Gemma 4 on an L4 of Cloud Run, with the package that `pulumi package add` generated. docs/package.md has the commands.
import * as pulumi from "@pulumi/pulumi";
import * as gemma from "@gemma-serving/gemma-serving";

const config = new pulumi.Config();
const project = new pulumi.Config("gcp").require("project");
const account = config.require("serviceAccount");
const token = new gemma.HuggingFaceToken("hf-token", {
  project,
  secretId: "package-hf-token",
  value: config.requireSecret("hfToken"),
  readers: { server: `serviceAccount:${account}` },
});
const server = new gemma.CloudRunGpuService("gemma", {
  project,
  serviceName: "package-gemma",
  serviceAccount: account,
  model: "google/gemma-4-E2B-it",
  modelRevision: "3e22461f65e89153144f8adb70e3b8c2cc9845a7",
  secrets: { HF_TOKEN: token.versionName },
  vllm: { maxModelLen: 8192 },
  cloudRun: { region: "us-east4", gpu: "nvidia-l4", cpu: 8, memory: "20Gi", concurrency: 16, maxInstances: 1 },
});

export const url = server.uri;
export const plan = server.plan;

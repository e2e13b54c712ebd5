"""Declares one resource of every type that the stand-ins support; with the setting `changed`, most of them differ."""

import json
import os

import pulumi
import pulumi_docker as docker
import pulumi_gcp as gcp

ON_DOCKER_HUB = "vllm/vllm-openai@sha256:61fc8a896b0a4fbbbdc063bc4b0dbc25ce98e02b5050c24aeb7830ac02039b14"

config = pulumi.Config()
changed = config.get_bool("changed") or False
project = os.environ["GOOGLE_CLOUD_PROJECT"]
provider = gcp.Provider("gcp", project=project, region="us-east4")
opts = pulumi.ResourceOptions(provider=provider)
labels = {"managed-by": "test", **({"changed": "yes"} if changed else {})}

gcp.projects.ServiceIdentity("agent", project=project, service="artifactregistry.googleapis.com", opts=opts)
sa = gcp.serviceaccount.Account(
    "sa", account_id="gemma-server", display_name="Changed" if changed else "Gemma server", opts=opts
)
gcp.projects.IAMMember("member", project=project, role="roles/logging.logWriter", member=sa.member, opts=opts)
gcp.projects.IAMMember("member2", project=project, role="roles/monitoring.metricWriter", member=sa.member, opts=opts)
gcp.serviceaccount.IAMMember(
    "user", service_account_id=sa.name, role="roles/iam.serviceAccountUser", member=sa.member, opts=opts
)
secret = gcp.secretmanager.Secret(
    "secret",
    secret_id="hf-token",
    replication=gcp.secretmanager.SecretReplicationArgs(auto=gcp.secretmanager.SecretReplicationAutoArgs()),
    labels=labels,
    opts=opts,
)
version = gcp.secretmanager.SecretVersion(
    "version",
    secret=secret.id,
    secret_data=pulumi.Output.secret("hf_canary_2" if changed else "hf_canary_1"),
    opts=opts,
)
gcp.secretmanager.SecretIamMember(
    "secretiam", secret_id=secret.secret_id, role="roles/secretmanager.secretAccessor", member=sa.member, opts=opts
)
bucket = gcp.storage.Bucket(
    "bucket",
    location="us-east4",
    uniform_bucket_level_access=True,
    public_access_prevention="enforced",
    soft_delete_policy=gcp.storage.BucketSoftDeletePolicyArgs(retention_duration_seconds=0),
    lifecycle_rules=[
        gcp.storage.BucketLifecycleRuleArgs(
            action=gcp.storage.BucketLifecycleRuleActionArgs(type="AbortIncompleteMultipartUpload"),
            condition=gcp.storage.BucketLifecycleRuleConditionArgs(age=1),
        )
    ],
    labels=labels,
    force_destroy=True,
    opts=opts,
)
gcp.storage.BucketIAMMember(
    "bucketiam", bucket=bucket.name, role="roles/storage.objectViewer", member=sa.member, opts=opts
)
repo = gcp.artifactregistry.Repository(
    "repo",
    repository_id="images",
    location="us-east4",
    format="DOCKER",
    mode="REMOTE_REPOSITORY",
    description="changed" if changed else None,
    remote_repository_config=gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgs(
        description="hub",
        docker_repository=gcp.artifactregistry.RepositoryRemoteRepositoryConfigDockerRepositoryArgs(
            public_repository="DOCKER_HUB"
        ),
    ),
    labels=labels,
    opts=opts,
)
built = gcp.artifactregistry.Repository("standard", repository_id="built", format="DOCKER", labels=labels, opts=opts)
gcp.artifactregistry.RepositoryIamMember(
    "repoiam",
    location="us-east4",
    repository=repo.name,
    role="roles/artifactregistry.reader",
    member=sa.member,
    opts=opts,
)
net = gcp.compute.Network("net", auto_create_subnetworks=False, routing_mode="GLOBAL" if changed else None, opts=opts)
subnet = gcp.compute.Subnetwork(
    "subnet",
    region="us-east4",
    network=net.id,
    ip_cidr_range="10.10.0.0/23" if changed else "10.10.0.0/24",
    private_ip_google_access=not changed,
    opts=opts,
)
gcp.compute.Firewall(
    "fw",
    network=net.self_link,
    direction="INGRESS",
    allows=[gcp.compute.FirewallAllowArgs(protocol="tcp", ports=["22", "8000"])],
    source_ranges=["10.0.0.0/8"] if changed else ["35.235.240.0/20"],
    target_tags=["gemma"],
    opts=opts,
)
router = gcp.compute.Router(
    "router", network=net.id, region="us-east4", description="changed" if changed else None, opts=opts
)
gcp.compute.RouterNat(
    "nat",
    router=router.name,
    region="us-east4",
    nat_ip_allocate_option="AUTO_ONLY",
    source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
    min_ports_per_vm=128 if changed else None,
    opts=opts,
)
http_get = gcp.cloudrunv2.ServiceTemplateContainerStartupProbeHttpGetArgs(path="/health", port=8000)
svc = gcp.cloudrunv2.Service(
    "svc",
    location="us-east4",
    deletion_protection=False,
    ingress="INGRESS_TRAFFIC_ALL",
    labels=labels,
    template=gcp.cloudrunv2.ServiceTemplateArgs(
        service_account=sa.email,
        timeout="3600s",
        execution_environment="EXECUTION_ENVIRONMENT_GEN2",
        max_instance_request_concurrency=8 if changed else 4,
        gpu_zonal_redundancy_disabled=True,
        node_selector=gcp.cloudrunv2.ServiceTemplateNodeSelectorArgs(accelerator="nvidia-l4"),
        scaling=gcp.cloudrunv2.ServiceTemplateScalingArgs(min_instance_count=0, max_instance_count=1),
        containers=[
            gcp.cloudrunv2.ServiceTemplateContainerArgs(
                name="vllm",
                image=pulumi.Output.concat(
                    "us-east4-docker.pkg.dev/", project, "/", repo.repository_id, "/", ON_DOCKER_HUB
                ),
                commands=["vllm", "serve"],
                args=["google/gemma-4-E2B-it", "--port=8000", *(["--max-model-len=8192"] if changed else [])],
                envs=[
                    gcp.cloudrunv2.ServiceTemplateContainerEnvArgs(name="VLLM_LOGGING_LEVEL", value="INFO"),
                    gcp.cloudrunv2.ServiceTemplateContainerEnvArgs(
                        name="HF_TOKEN",
                        value_source=gcp.cloudrunv2.ServiceTemplateContainerEnvValueSourceArgs(
                            secret_key_ref=gcp.cloudrunv2.ServiceTemplateContainerEnvValueSourceSecretKeyRefArgs(
                                secret=secret.secret_id, version=version.version
                            )
                        ),
                    ),
                ],
                ports=gcp.cloudrunv2.ServiceTemplateContainerPortsArgs(container_port=8000),
                resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
                    limits={"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}, cpu_idle=False, startup_cpu_boost=True
                ),
                startup_probe=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeArgs(
                    initial_delay_seconds=10,
                    period_seconds=60,
                    timeout_seconds=60,
                    failure_threshold=30,
                    http_get=http_get,
                ),
                volume_mounts=[
                    gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name="models", mount_path="/mnt/models"),
                    gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name="scratch", mount_path="/mnt/scratch"),
                ],
            )
        ],
        volumes=[
            gcp.cloudrunv2.ServiceTemplateVolumeArgs(
                name="models",
                gcs=gcp.cloudrunv2.ServiceTemplateVolumeGcsArgs(
                    bucket=bucket.name, read_only=True, mount_options=["uid=2000"]
                ),
            ),
            gcp.cloudrunv2.ServiceTemplateVolumeArgs(
                name="scratch",
                empty_dir=gcp.cloudrunv2.ServiceTemplateVolumeEmptyDirArgs(medium="MEMORY", size_limit="8Gi"),
            ),
        ],
        vpc_access=gcp.cloudrunv2.ServiceTemplateVpcAccessArgs(
            egress="PRIVATE_RANGES_ONLY",
            network_interfaces=[
                gcp.cloudrunv2.ServiceTemplateVpcAccessNetworkInterfaceArgs(
                    network=net.name, subnetwork=subnet.name, tags=["gemma"]
                )
            ],
        ),
    ),
    traffics=[gcp.cloudrunv2.ServiceTrafficArgs(percent=100, type="TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST")],
    opts=opts,
)
gcp.cloudrunv2.ServiceIamMember(
    "svciam", location="us-east4", name=svc.name, role="roles/run.invoker", member="user:a@example.com", opts=opts
)
channel = gcp.monitoring.NotificationChannel(
    "channel",
    display_name="changed" if changed else "ops",
    type="email",
    labels={"email_address": "a@example.com"},
    opts=opts,
)
gcp.monitoring.AlertPolicy(
    "alert",
    display_name="changed" if changed else "kv cache",
    combiner="OR",
    notification_channels=[channel.name],
    conditions=[
        gcp.monitoring.AlertPolicyConditionArgs(
            display_name="kv",
            condition_prometheus_query_language=gcp.monitoring.AlertPolicyConditionConditionPrometheusQueryLanguageArgs(
                duration="60s",
                evaluation_interval="30s",
                query="avg(vllm:kv_cache_usage_perc) > 0.85",
                disable_metric_validation=True,
            ),
        )
    ],
    user_labels=labels,
    opts=opts,
)
dashboard = {"displayName": "changed" if changed else "gemma", "gridLayout": {"widgets": [{"text": {"content": "hi"}}]}}
gcp.monitoring.Dashboard("dash", dashboard_json=json.dumps(dashboard), opts=opts)
# The default provider has its own region (gcp:region), and the environment sets the project.
elsewhere = gcp.artifactregistry.Repository(
    "elsewhere",
    repository_id="elsewhere",
    format="DOCKER",
)
image = docker.Image(
    "image",
    image_name=pulumi.Output.concat("us-east4-docker.pkg.dev/", project, "/", built.repository_id, "/vllm:v1"),
    build=docker.DockerBuildArgs(context=".", args={"CHANGED": str(changed)}, platform="linux/amd64"),
    registry=docker.RegistryArgs(
        server="us-east4-docker.pkg.dev", username="x", password=pulumi.Output.secret("registry_canary")
    ),
)
pulumi.export("elsewhere", elsewhere.id)
pulumi.export("repoDigest", image.repo_digest)
pulumi.export("uri", svc.uri)
pulumi.export(
    "project",
    gcp.organizations.get_project_output(project_id=project, opts=pulumi.InvokeOptions(provider=provider)).number,
)

"""Each failure that a preview can name, from a settings file: one edit of a stack of this project shows the finding."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import finding_text, to_question
from gemma_serving.stacks.settings_wording import StackWording

ROOT = Path(__file__).resolve().parents[2]
LATE = {"initialDelay": "30s", "period": "60s", "failureThreshold": 3, "timeout": "50s"}
PROVIDER = {
    "gcp:computeCustomEndpoint": "https://canary/",
    "gcp:accessToken": {"secure": "canary"},
    "gcp:zone": "us-east4-a",
}
TOO_LONG = {"initialDelay": "240s", "period": "60s", "failureThreshold": 31, "timeout": "50s"}
OWN_IMAGE = {"repository": "my/vllm", "digest": f"sha256:{'0' * 64}", "uid": 2_000, "gid": 2_000}
OLD_IMAGE = {"repository": "vllm/vllm-openai", "digest": f"sha256:{'1' * 64}", "version": "0.10.2"}
STREAMS = {"mode": "streamer"}
CROWDED = {"cloudRun.concurrency": 64, "vllm.maxNumSeqs": 256, "workload": {}}
NETWORK = {"network": "shared", "subnetwork": "shared", "privateGoogleAccess": False}
MEDIA_IN_A_NETWORK = {
    "tpu.existingNetwork": {**NETWORK, "privateGoogleAccess": True},
    "tpu.zones": ["us-east5-a"],
    "vllm.allowedMediaDomains": ["a.example"],
}
TOKENS_1000 = {"vllm.extraArgs": ['--mm-processor-kwargs={"max_soft_tokens":1000}']}
HUB_DRAFTER = {
    "weights": "bucket",
    "vllm.maxNumSeqs": 16,
    "tpu.existingNetwork": {**NETWORK, "privateGoogleAccess": True},
    "tpu.zones": ["us-east5-a"],
    "vllm.speculativeConfig": {
        "model": "google/gemma-4-E2B-it-assistant",
        "num_speculative_tokens": 3,
        "revision": "0" * 40,
    },
}
KEY = "projects/p/secrets/key/versions/1"
BF16 = "google/gemma-4-31B-it"
CENTRAL = ["us-central1-a", "us-central1-b"]
CUT = {"cloudRun.requestTimeout": "2m", "workload": {"inputTokens": 2_000, "outputTokens": 6_000, "users": 8}}
SLOW_AND_STREAMED = {
    "model": BF16,
    "modelRevision": None,
    "bucket": {},
    "cloudRun.mount": {"mode": "fuse"},
    "vllm.loadFormat": "runai_streamer",
}
FROM_HUB = {
    "model": "google/gemma-4-12B-it",
    "modelRevision": "707f0a3b8a3c7ad586ed01e27eafbad8a27dd0f7",
    "quantization": "fp8",
    "weights": "hub",
    "bucket": {},
    "cloudRun.cpu": 6,
    "cloudRun.memory": "24Gi",
}
DRAFTER = {"model": "my/drafter", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
MOE, REPLICAS = "google/gemma-4-26B-A4B-it", {"vllm.dataParallelSize": 4, "vllm.tensorParallelSize": None}
QAT = "google/gemma-4-31B-it-qat-w4a16-ct"
TODAY = "2026-11-20"
"""The date of the question: the planner has no clock."""
ABSENT_ID = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
SMALL = {"cloudRun.memory": "16Gi", "cloudRun.mount": {"mode": "memory"}}
E4B_QAT = "google/gemma-4-E4B-it-qat-w4a16-ct"
E2B_UNQUANTIZED = "google/gemma-4-E2B-it-qat-q4_0-unquantized"


OTHER = "tests/fixtures/models/other-8b"
STREAMED = {"weights": "bucket", "vllm.loadFormat": "runai_streamer"}
OLD_TPU_IMAGE = {"repository": "vllm/vllm-tpu", "digest": "sha256:" + "b" * 64, "version": "0.26.0"}
FOREIGN = {"model": "google/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3}


def released(version: str, digest: str = f"sha256:{'2' * 64}") -> Mapping[str, str]:
    return {"repository": "vllm/vllm-openai", "digest": digest, "version": version}


def drafting(drafter: str) -> Mapping[str, object]:
    return {"method": "draft-model", "drafter": drafter, "tokens": 3}


DRAFTS_12B = {"vllm.speculative": drafting("google/gemma-4-12B-it-assistant")}
DRAFTS_26B = {"vllm.speculative": drafting("google/gemma-4-26B-A4B-it-assistant")}
WITH_EXPERTS = {"image": released("0.31.0"), "vllm.extraArgs": ["--enable-expert-parallel"], **DRAFTS_26B}


class Incident(NamedTuple):
    """One edit of a stack's file, and the finding that it has to show."""

    stack: str
    edit: Mapping[str, Any]
    severity: str
    figure: str
    """What the text has to say, as a regular expression."""


TWO_FOR_40 = (
    r"is 64 GiB, but the memory quota of us-east4 is 40 GiB \(cloudRun\.memoryQuota\)\. .*will fail.*[sS]et cloudRun\.maxInstances: 1.*"
    r"cloudRun\.memory: 20Gi.*request 32 vCPU \(cloudRun\.cpuQuota\) and 128 GiB \(cloudRun\.memoryQuota\)"
)
AN_UPDATE = (
    r"During an update, .* 2 x cloudRun\.maxInstances 1 x cloudRun\.memory 32 GiB is 64 GiB, .*\(new projects have 40 GiB\)\. .*"
    r"[sS]et cloudRun\.memory: 20Gi.*request 64 GiB"
)
ROLE_FOR_ONE = (
    r"grants 1 member roles/tpu\.admin, .*Set tpu\.tunnelRole: gemmaTunnel\. Create .*"
    r"`gcloud iam roles create gemmaTunnel --project=YOUR_PROJECT .*tpu\.operations\.get`\."
)
TWO_LARGE = {"cloudRun.maxInstances": 2, "cloudRun.memory": "32Gi"}
IRONWOOD = {
    "tpu.acceleratorType": "tpu7x-4",
    "tpu.zones": ["us-central1-c"],
    "tpu.bootDiskSizeGb": 110,
    "vllm.tensorParallelSize": 8,
}
INCIDENTS: Mapping[str, Incident] = {
    "FIT01": Incident("l4-qat", {"model": QAT}, "block", r"22\.4 GiB .* 21\.96 GiB is usable.*RTX PRO 6000.*12B-it-qat"),
    "FIT02": Incident("l4-qat", {"model": QAT, "vllm.cpuOffloadGib": 14}, "warn", r"14\.0 GiB .* 0\.\d+ tokens/s"),
    "FIT03": Incident("l4-qat", SMALL, "block", r"19\.\d+ GiB .* 16 GiB\..*cloudRun\.memory: 24Gi"),
    "FIT04": Incident("tpu-v6e4", {"model": BF16, "vllm.maxModelLen": 262_144, "vllm.gpuMemoryUtilization": 0.9}, "block", r"tokens.*vllm\.maxModelLen: \d+"),
    "FIT05": Incident("l4-12b-qat", {"vllm.gpuMemoryUtilization": 0.99}, "block", r"0\.22 GiB .* vllm\.gpuMemoryUtilization: 0\.9\d"),
    "FIT06": Incident("tpu-v6e1-e4b", {"model": "google/gemma-4-E4B-it-qat-w4a16-ct"}, "block", r"- set model: google/gemma-4-E4B-it and remove modelRev"),
    "FIT07": Incident("tpu-v6e1", {"vllm.kvCacheDtype": "fp8"}, "warn", r"tokens of \d+ KiB, .* Remove vllm\.kvCacheDtype"),
    "FIT08": Incident("rtx6000-31b", {"vllm.tensorParallelSize": 2}, "block", r"is 2, .* has 1 GPU"),
    "FIT09": Incident("l4-qat", {"vllm.maxModelLen": 200_000}, "warn", r"3\.20 GiB holds little .* 200,000 .*may run out.* vllm\.maxModelLen: \d+"),
    "REL01": Incident("l4-12b-qat", {"image": released("0.28.0"), **DRAFTS_12B}, "block", r"will not .*pull/53884\)\. .*[Rr]emove vllm\.speculative"),
    "ARG06": Incident("l4-12b-qat", {"vllm.maxNumSeqs": 8_192}, "block", r"max_num_seqs \(8192\)"),
    "OBS04": Incident("l4-12b-qat", {"smoke.minDecodeTokPerS": 500.0}, "warn", r"planned at \d+ to \d+ tok/s"),
    "LEN04": Incident(
        "l4-12b-qat", {"vllm.maxModelLen": 2_048, "vllm.limitMmPerPrompt": {"image": 9}}, "warn", r"up to 2,520 tokens"
    ),
    "WRK11": Incident("l4-e2b-lora", {"vllm.servedModelName": "procurement"}, "block", r"procurement is the name of an adapter"),
    "LEN02": Incident("l4-12b-qat", {"vllm.maxNumBatchedTokens": 2_048}, "block", r"vllm\.maxNumBatchedTokens: 2496"),
    "LEN03": Incident("tpu-v6e4", {"vllm.maxModelLen": 131_073}, "block", r"131,073.*vllm\.maxModelLen: 131072"),
    "LDR01": Incident("l4-qat", {"vllm.loadFormat": "runai_streamer"}, "block", r"21 s.* cloudRun\.mount\.mode: streamer and remove"),
    "LDR02": Incident("l4-qat", {"cloudRun.mount": STREAMS, "image": OLD_IMAGE}, "block", r"vLLM 0\.10\.2, .* 0\.11\.1 .*mount\.mode: fuse-buffered"),
    "PRB01": Incident("l4-qat", {"cloudRun.startupProbe": LATE}, "block", r"allows 3 min.*cloudRun\.startupProbe\.failureThreshold: \d+"),
    "PRB02": Incident("l4-qat", {"cloudRun.startupProbe": TOO_LONG}, "block", r"1860 s; .* 1800 s"),
    "SCL01": Incident("l4-qat", {"cloudRun.concurrency": 4, "cloudRun.maxInstances": 1}, "warn", r"4 concurrent requests .* Set cloudRun\.concurrency: \d+"),
    "SCL02": Incident("l4-qat", {"cloudRun.gpuQuota": 1, "cloudRun.maxInstances": 2}, "block", r"is 2, .* us-east4 is 1 \(.*cloudRun\.maxInstances: 1"),
    "SCL04": Incident("l4-qat-002", {**TWO_LARGE, "cloudRun.memoryQuota": "40Gi"}, "block", TWO_FOR_40),
    "SCL05": Incident("l4-qat", {"cloudRun.memory": "32Gi"}, "warn", AN_UPDATE),
    "SCL03": Incident("l4-qat", {"cloudRun.region": "europe-west3"}, "block", r"europe-west3\. Set cloudRun\.region: europe-west1"),
    "SCL06": Incident("l4-qat-002", {"cloudRun.minInstances": 0}, "warn", r"11 min 40 s\. OpenAI.*: fuse-buf.*minInstances: 1\. .*\$32\.\d\d per"),
    "SCL07": Incident("l4-12b-qat", CUT, "block", r"takes 3 min 21 s to 9 min 45 s, .* after 2 min \(.* Set cloudRun\.requestTimeout: 1h"),
    "TPU01": Incident("tpu-v6e4", {"vllm.tensorParallelSize": 1}, "warn", r"is 1, .* 4 chips\. 3 of them will be idle.*vllm\.tensorParallelSize: 4"),
    "DPL01": Incident("tpu-v6e4", {"model": MOE, **REPLICAS, "vllm.dataParallelSize": 2}, "block", r"mixture of experts.*[Rr]emove vllm\.dataParallelSize"),
    "DPL02": Incident("tpu-v6e4", REPLICAS, "warn", r"4 times one replica's.*Remove vllm\.dataParallelSize"),
    "TPU02": Incident("tpu-v6e4", {"tpu.maxRunDuration": None}, "block", r"tpu\.maxRunDuration is not set.*tpu\.maxRunDuration: 4h"),
    "TPU04": Incident("tpu-v6e4", {"tpu.zones": ["us-west1-a", "us-east5-b"]}, "block", r"us-west1-a.*tpu\.zones: \[us-east5-b\]"),
    "ACC01": Incident("tpu-v6e4-31b", IRONWOOD, "block", r"tpu7x-4 cannot be deployed: TPU7x is planned only: .*allow list.*acceleratorType: v6e-"),
    "ACC02": Incident("tpu-v6e4-31b", IRONWOOD, "info", r"Decode, prefill and start are unknown on tpu7x-4.*No figure of another generation"),
    "TPU06": Incident("tpu-v6e4", {"tpu.compileCache": "off"}, "warn", r"compile for 6 min 36 s instead of 2 min 27 s\. Set tpu\.compileCache: machine"),
    "TPU08": Incident("tpu-v6e4", {"tpu.maxRunDuration": "10m"}, "block", r"takes 12 min 43 s, at most 15 min 6 s\. Google will delete.*maxRunDuration: 16m"),
    "TPU09": Incident("tpu-v6e4", {"tpu.runtimeVersion": "tpu-ubuntu2204-base"}, "block", r"for v6e is v2-alpha-tpuv6e\. .* Remove tpu\.runtimeVersion"),
    "TPU07": Incident("tpu-v6e1", STREAMED, "warn", r"read 9\.\d GiB from the bucket\..*Remove vllm\.loadFormat"),
    "HST02": Incident("tpu-v6e4", {"model": BF16}, "warn", r"100 GB .* 58\.\d GiB .*80 GiB, recommended: 103 GiB.*Set tpu\.bootDiskSizeGb: 110"),
    "NET01": Incident("tpu-v6e4", {"endpointUrl": "http://localhost:8000"}, "block", r"endpointUrl: http://127\.0\.0\.1:8000"),
    "NET02": Incident("tpu-v6e4", {"tpu.existingNetwork": NETWORK, "tpu.zones": ["us-east5-a"]}, "block", r"is false.*Remove tpu\.existingNetwork\."),
    "NET03": Incident("tpu-v6e1", HUB_DRAFTER, "block", r"-assistant .*Remove tpu\.existingNetwork; or remove vllm\.speculativeConfig\. Or run gemma"),
    "SEC01": Incident("tpu-v6e4", {"vllm.extraArgs": ["--api-key=canary"]}, "block", r"1 argument.*vllm\.extraArgs: \[\]"),
    "ARG01": Incident("l4-qat", {"vllm.extraArgs": ["--max_num_seqs", "8", "--seed=1"]}, "block", r"1 argument.*maxNumSeqs: 8, vllm\.extraArgs: \[--seed=1\]"),
    "ARG02": Incident("l4-qat", {"vllm.extraArgs": ["--disable-log-requests"]}, "block", r"not a flag of vLLM 0\.31\.0 .*Set vllm\.extraArgs: \[\]"),
    "ARG03": Incident("tpu-v6e1", TOKENS_1000, "block", r"to 1,000, but .* 560 or 1120 .*imageTokens: 1120, vllm\.extraArgs: \[\]\."),
    "ARG05": Incident("l4-qat", {"vllm.extraArgs": ["--kv-cache-memory-bytes=1000000000"]}, "warn", r"plan ignores that.*Set vllm\.extraArgs: \[\]"),
    "ARG04": Incident("tpu-v6e1", {"vllm.toolCallParser": "hermes"}, "warn", r"toolCallParser is hermes, .*as text\. Set vllm\.toolCallParser: gemma4\."),
    "HST01": Incident("l4-qat-002", {"cloudRun.memory": "64Gi"}, "block", r"64 GiB, .* 16 to 32 GiB with L4\. Set cloudRun\.memory: 32Gi"),
    "SEC03": Incident("tpu-v6e1", {"tpu.ssh": "metadata-key"}, "warn", r"OS Login is off.*is root on it.*tpu\.ssh: os-login"),
    "SEC09": Incident("tpu-v6e1", {"tpu.tunnelMembers": ["user:a@example.com"]}, "warn", ROLE_FOR_ONE),
    "OBS02": Incident("l4-qat-002", {"alerts.email": "a@example.com"}, "warn", r"metrics\.enabled is off, .*the daily cost.*Set metrics\.enabled: true\.$"),
    "OBS03": Incident("l4-12b-qat", {"metrics.enabled": True}, "block", r"at least 0\.5 GiB.*2 vCPU and 8 GiB.*cloudRun\.cpu: 6, cloudRun\.memory: 17Gi"),
    "SEC02": Incident("l4-qat", {"cloudRun.public": True}, "block", r"up to \$880 .*cloudRun\.public: false"),
    "SEC07": Incident("tpu-v6e1", {"modelRevision": None}, "warn", r"gemma-4-E2B-it has no commit\. .*[Ss]et modelRevision: 3e22461f65e8"),
    "LDR04": Incident("l4-qat", {"vllm.loadFormat": "auto"}, "warn", r"vllm\.loadFormat is auto, .*without safetensors.*[Rr]emove vllm\.loadFormat"),
    "MOD06": Incident("tpu-v6e1", {"vllm.trustRemoteCode": True}, "warn", r"vllm\.trustRemoteCode is true\. .*[Rr]emove vllm\.trustRemoteCode"),
    "SEC04": Incident("l4-qat", {"cloudRun.public": True}, "warn", r"0\.31\.0 has 2 published .*; vLLM 0\.32\.0 .*stall all .*\(PYSEC-2026-4344\)"),
    "SEC11": Incident("tpu-v6e1", {"vllm.trustRemoteCode": True}, "block", r"0\.31\.0 has none .*\(CVE-2026-114053\).*[Rr]emove vllm\.trustRemoteCode"),
    "SEC05": Incident("l4-qat", {"apiKeySecret": KEY, "vllm.extraArgs": ["--grpc", "--uds=/x"]}, "block", r"no API key.*Unix.*vllm\.extraArgs: \[\]"),
    "SEC06": Incident("tpu-v6e1", {"vllm.allowedMediaDomains": ["a.example.com"]}, "warn", r"URLs of a\.example\.com.*Remove vllm\.allowedMedia"),
    "SEC12": Incident("l4-qat", PROVIDER, "block", r"gcp:accessToken, gcp:computeCustomEndpoint are set\. .*Remove gcp:accessToken, gcp:compute"),
    "SEC10": Incident("l4-qat", {"vllm.extraArgs": ['--allowed-origins=["*"]']}, "warn", r"allows web pages.*vllm\.extraArgs: \[\]"),
    "SEC08": Incident("l4-qat", {"cloudRun.compileCache": "bucket", "bucket.existing": "ours"}, "warn", r"existing is ours, .*cloudRun\.compileCache: 'off'"),
    "WRK01": Incident("tpu-v6e1", {"workload": {"ratePerS": 40.0}}, "warn", r"workload\.ratePerS is 40, .* grow by .* [sS]et workload\.ratePerS: \d"),
    "WRK02": Incident("l4-qat", {"workload": {"users": 64}}, "warn", r"workload\.users is 64, .*48 of them will wait.*[sS]et workload\.users: 16"),
    "WRK03": Incident("tpu-v6e1", {"workload": {"inputTokens": 20_000}}, "block", r"20,512 tokens .* is 8,192.*[Ss]et vllm\.maxModelLen: 20512"),
    "WRK04": Incident("l4-qat", {"workload": {"images": 9, "audioS": 3.0}}, "block", r"9 images, but 4 are allowed; 3 s of audio.*workload\.audioS: 0"),
    "WRK05": Incident("l4-qat", {"workload": {"adapters": 2}}, "block", r"adapters is 2, .* no LoRA.*vllm\.lora\.atOnce: 2"),
    "WRK06": Incident("l4-qat", {"vllm.speculativeConfig": DRAFTER}, "warn", r"draft model my/drafter.*Remove vllm\.speculativeConfig"),
    "WRK10": Incident("tpu-v6e1", {"vllm.maxModelLen": 16_384}, "info", r"With 4,096, .* 1\.\d times .* reject longer .*Set vllm\.maxModelLen: 4096"),
    "WRK09": Incident("tpu-v6e1", {"vllm.lora": {"adapters": {"sql": "a1/sql"}}}, "block", r"E2B-it with its JAX .*0 of 1.*[Rr]emove vllm\.lora"),
    "WRK08": Incident("l4-12b-qat", {"vllm.lora": {"adapters": {"sql": "gs://a1/sql"}}}, "block", r"1 adapter.*gs://a1/sql.*vllm\.lora\.adapters: \{"),
    "WRK07": Incident("rtx6000-31b", {"vllm.multimodal": {"images": 2, "audios": 1}}, "warn", r"31B-it-.* does not accept a.*\.images: 2, .*\.audios: 0"),
    "MOD01": Incident("rtx6000-31b", {"model": "org/other-8b", "modelConfig": OTHER, "vllm": {}}, "info", r"8\.03 billion .* LlamaForCausalLM"),
    "MOD02": Incident("tpu-v6e1", {"model": "google/gemma-4-E2B"}, "warn", r"return 400.*[sS]et model: google/gemma-4-E2B-it"),
    "MOD03": Incident("rtx6000-31b", {"vllm": {"speculativeConfig": FOREIGN}}, "block", r"1,536 wide.*vllm\.speculativeConfig: .*31B-it-assistant"),
    "MOD04": Incident("l4-qat", {"model": ABSENT_ID}, "block", r"google/.* 404 \(https.*2026-07-31\).*Set model: xbill9/"),
    "MOD07": Incident("tpu-v6e1", {"model": "google/gemma-4-E4B-it"}, "block", r"commit of google/gemma-4-E2B-it, .*\. Set modelRevision: ee0ef6023621cff"),
    "MOD08": Incident("l4-qat", {"bucket.templates": {"chat_template.jinja": "2026-04"}}, "warn", r"April 2026, but lacks .* set vllm\.\w+: \./chat_template"),
    "FUS01": Incident("l4-qat", {"image": OWN_IMAGE, "cloudRun.mount": {"uid": 0}}, "block", r"uid 0 \(the image runs as 2000\).*Remove cloudRun\.mount\.uid"),
    "CST02": Incident("l4-qat-002", {}, "info", r"is 1, which costs \$32\.\d\d per day.* Set cloudRun\.minInstances: 0"),
    "CST03": Incident("tpu-v6e4", {"maxUsd": 10}, "warn", r"is 10, .* after 111 min; .*tpu\.maxRunDuration: 1h51m; or set maxUsd: 22"),
    "CST04": Incident("tpu-v6e1", {"tpu.provisioning": "spot"}, "info", r"3 of 3 .*: v6e_spot_\w+ in asia-northeast1 \(date unknown\)\. Run .*prices`\."),
    "CST05": Incident("tpu-v6e4", {}, "info", r"v6e_flex_start_usd_per_chip_hour in southamerica-west1 is known.* Run .*plan prices`\."),
    "CST07": Incident("tpu-v6e4", {"tpu.maxUsdPerHour": 3}, "block", r"maxUsdPerHour is 3, but the cheapest form costs \$5\.40.* Set tpu\.maxUsdPerHour: 5\.4"),
}  # fmt: skip
MORE: tuple[tuple[str, Incident], ...] = (
    ("REL01", Incident("l4-qat", WITH_EXPERTS, "block", r"no experts .*pull/56936\)\. .*[Ss]et vllm\.extraArgs: \[\]; or remove vllm\.speculative\.")),
    ("REL01", Incident("tpu-v6e4", {**REPLICAS, "tpu.compileCache": "bucket"}, "warn", r"compileCache: 'off' \(TPU06 then warns\); or remove vllm\.data")),
    ("MOD08", Incident("rtx6000-31b", {}, "info", r"template of google/gemma-4-31B-it-qat-w4a16-ct has an unknown age: .* gemma stage_model")),
    ("MOD08", Incident("tpu-v6e1", {"modelRevision": "0" * 40}, "info", r"template of google/gemma-4-E2B-it has an unknown age")),
    ("MOD07", Incident("l4-e2b-lora", {"model": "google/gemma-4-E2B-it-qat-w4a16-ct"}, "block", r"loaded\. Remove modelRevision\. .*`gemma doctor STACK`\.")),
    ("SEC02", Incident("l4-qat", {"cloudRun.public": True, "apiKeySecret": KEY}, "block", r"except /health requires the API key.*No maxUsd.*set maxUsd")),
    ("SEC02", Incident("l4-qat", {"cloudRun.public": True, "apiKeySecret": KEY, "maxUsd": 50}, "warn", r"requires the API key.*up to \$880")),
    ("SEC02", Incident("l4-qat", {"cloudRun.public": True, "maxUsd": 50}, "block", r"The endpoint is public: anyone can use it, at a cost of up to \$880")),
    ("SEC06", Incident("tpu-v6e4", MEDIA_IN_A_NETWORK, "block", r"in your network \(tpu\.existingNetwork\)")),
    ("FIT03", Incident("l4-qat", {"cloudRun.memory": "17Gi"}, "warn", r"16\.77 GiB .*1\.00 GiB should stay free.*at random\. Set cloudRun\.memory: 20Gi")),
    ("SEC06", Incident("l4-qat", {"cloudRun.directVpc": True, "vllm.allowedMediaDomains": ["a.example"]}, "block", r"your network \(cloudRun\.directVpc\)")),
    ("SEC06", Incident("l4-qat", {"vllm.allowedMediaDomains": ["a.example", "10.0.0.5"]}, "block", r"10\.0\.0\.5 can only be inside")),
    ("ARG01", Incident("l4-qat", {"vllm.extraArgs": ["--allowed-media-domains", "a.example"]}, "block", r"[sS]et vllm\.allowedMediaDomains: \[a\.example\]")),
    ("TPU07", Incident("tpu-v6e1", {**STREAMED, "image": OLD_TPU_IMAGE}, "block", r"vLLM 0\.29\.0 or later.*Remove vllm\.loadFormat")),
    ("FIT06", Incident("tpu-v6e1-e4b", {"model": E4B_QAT, "image": OWN_IMAGE}, "warn", r"is untested on v6e-1: these files lack k_norm .* image\.supports")),
    ("FIT06", Incident("tpu-v6e1", {"model": E2B_UNQUANTIZED, "image": "vllm-tpu-w4a16"}, "block", r"lack it\. .*model: google/gemma-4-E2B-it\b")),
    ("FIT06", Incident("l4-12b-qat", {"image": {**OWN_IMAGE, "version": "0.20.0"}}, "block", r"- set image: vllm-openai\n")),
    ("WRK03", Incident("tpu-v6e1", {"workload": {"inputTokens": 262_144}, "vllm.maxModelLen": 512}, "block", r"inputTokens: 1, .*outputTokens: 511")),
    ("SCL01", Incident("l4-qat", CROWDED, "warn", r"64, .* 22 concurrent requests \(KV .*concurrency: 22")),
    ("FIT05", Incident("l4-12b-qat", {"vllm.gpuMemoryUtilization": 0.97}, "warn", r"0\.66 GiB .* may crash .* vllm\.gpuMemoryUtilization: 0\.96")),
    ("FIT05", Incident("tpu-v6e1", {"vllm.gpuMemoryUtilization": 1.0}, "block", r"0\.00 GiB .* at least 0\.94 GiB .* vllm\.gpuMemoryUtilization: 0\.94")),
    ("FIT05", Incident("tpu-v6e4-turbo", {"vllm.speculativeConfig": NGRAM}, "block", r"30\.32 GiB .*256 takes 29\.87 .*TPU 0\.23\.0 and later.*Remove vllm")),
    ("FIT05", Incident("tpu-v6e4-turbo", {"vllm.speculativeConfig": NGRAM, "vllm.maxNumSeqs": 32}, "warn", r"2\.51 to 3\.28 GiB .*set vllm\.maxNumSeqs: 16")),
    ("FIT07", Incident("tpu-v6e4-turbo", {}, "info", r"1\.71 times as many as with bf16.*Keep it if")),
    ("TPU01", Incident("tpu-v6e4", {"vllm.tensorParallelSize": 8}, "block", r"is 8, .* 4 chips\. .*; or remove vllm\.tensorParallelSize\.")),
    ("TPU02", Incident("tpu-v6e4", {"tpu.maxRunDuration": "8d"}, "block", r"8 d, .* maximum is 7 d.*tpu\.maxRunDuration: 7d")),
    ("TPU02", Incident("tpu-v6e4", {"tpu.maxRunDuration": "5m"}, "block", r"5 min.*Set tpu\.maxRunDuration: 10m\.")),
    ("SCL04", Incident("l4-qat", TWO_LARGE, "warn", r"64 GiB, but the memory quota of us-east4 is not set \(new projects have 40 GiB\)")),
    ("TPU08", Incident("tpu-v6e4", {"tpu.readyTimeout": "14m"}, "warn", r"is 14 min, but.*`?gemma up`? may fail.*tpu\.readyTimeout: 16m")),
    ("TPU08", Incident("tpu-v6e1", {"tpu.readyTimeout": "5m", "tpu.maxRunDuration": "14m"}, "block", r"will fail.*may.*readyTimeout: 16m.*Duration: 16m")),
    ("TPU08", Incident("tpu-v6e4", {"maxAge": "14m"}, "warn", r"maxAge is 14 min.* A guard may tear .* maxAge: 16m")),
    ("TPU04", Incident("tpu-v6e1", {"tpu.api": "compute-engine", "tpu.zones": CENTRAL}, "warn", r"for us-central1-a, us-central1-b\..*us-east5-a")),
    ("SCL02", Incident("l4-qat", {"cloudRun.zonalRedundancy": True}, "warn", r"0 in new projects, is not set\. Set cloudRun\.zonalRedundancy: false")),
    ("SCL03", Incident("l4-qat", {"cloudRun.region": "us-central1"}, "warn", r"by invitation only in us-central1.*region: us-east4;.*set cloudRun\.gpuQuota")),
    ("SCL03", Incident("l4-qat", {"cloudRun.region": "asia-south1"}, "warn", r"by invitation only in asia-south1.*region: asia-southeast1;")),
    ("SCL07", Incident("l4-12b-qat", {**CUT, "cloudRun.requestTimeout": "5m"}, "warn", r"A slow answer .*requestTimeout: 1h")),
    ("FIT03", Incident("l4-12b-qat", FROM_HUB, "block", r"22\.28 GiB checkpoint needs 26\.28 GiB .* cloudRun\.cpu: 8, cloudRun\.memory: 28Gi")),
    ("HST01", Incident("l4-12b-qat", {**FROM_HUB, "cloudRun.memory": "8Gi"}, "block", r"Set cloudRun\.cpu: 8, cloudRun\.memory: 28Gi")),
    ("PRB01", Incident("rtx6000-31b", SLOW_AND_STREAMED, "block", r"allows at most 34 min.*Set cloudRun\.mount\.mode: fuse-buffered; or .*: streamer;")),
    ("SCL04", Incident("rtx6000-31b", {}, "warn", r"request 40 vCPU \(cloudRun\.cpuQuota\) and 160 GiB \(cloudRun\.memoryQuota\)")),
    ("SCL04", Incident("l4-qat-002", {"cloudRun.cpuQuota": 6}, "block", r"is 8 vCPU, but the vCPU quota of us-east4 is 6 vCPU.*[sS]et cloudRun\.cpu: 6")),
    ("SCL05", Incident("l4-12b-qat", {"cloudRun.maxInstances": 2}, "warn", r"4 x|64 GiB.*[sS]et cloudRun\.maxInstances: 1")),
    ("SCL02", Incident("rtx6000-31b", {}, "warn", r"is 1, but the GPU quota of us-central1 is not set")),
    ("SCL02", Incident("l4-qat", {"cloudRun.maxInstances": 2}, "warn", r"the GPU quota of us-east4 is not set.*set cloudRun\.gpuQuota")),
    ("FIT06", Incident("tpu-v6e1-e4b", {"quantization": "fp8"}, "block", r"- remove quantization\n")),
)  # fmt: skip
EVERY = [*INCIDENTS.items(), *MORE]


def edited(folder: Path, incident: Incident) -> Path:
    """Write the stack's file with the edit, and return its path."""
    document = yaml.safe_load(settings_file(incident.stack, ROOT).read_text(encoding="utf-8"))
    for key, value in incident.edit.items():
        first, *rest = key.split(".")
        place, last = document["config"], first if ":" in first else f"gemma-serving:{first}"
        for name in rest:
            place, last = place.setdefault(last, {}), name
        if value is None:
            del place[last]
        else:
            place[last] = value
    path = folder / f"Pulumi.{incident.stack}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def planned(path: Path) -> tuple[Plan, StackWording]:
    question = to_question(from_file(path, project="my-project"), today=TODAY)
    return plan(question), StackWording(question)


def test_every_rule_is_reached_from_a_settings_file():
    assert set(INCIDENTS) == set(RULES)


def test_the_incident_is_named_with_its_figure_and_its_remedy(subtests: pytest.Subtests, tmp_path: Path):
    for number, (identifier, incident) in enumerate(EVERY):
        with subtests.test(f"{identifier}-{number}"):
            result, wording = planned(edited(tmp_path, incident))
            finding = next(finding for finding in result.findings if finding.id == identifier)
            assert finding.severity == incident.severity
            assert finding.severity in RULES[identifier].severities
            assert (finding in result.stopping) == (incident.severity == "block")
            assert re.search(incident.figure, finding_text(finding, wording), re.DOTALL), finding_text(finding, wording)
            assert "canary" not in finding_text(finding, wording)
            ways = [repr(sorted(way.changes.items())) for way in finding.remedies]
            assert len(set(ways)) == len(ways), "a fix is offered twice"
            assert result.fits == (incident.severity != "block" and result.stopping == ())


@pytest.mark.parametrize(
    ("identifier", "incident"),
    [(i, n) for i, n in INCIDENTS.items() if n.severity == "block" and RULES[i].is_acceptable],
)
def test_an_incident_that_is_accepted_is_shown_and_stops_nothing(tmp_path: Path, identifier: str, incident: Incident):
    edit = {**incident.edit, "acceptFindings": [identifier]}
    result, _ = planned(edited(tmp_path, incident._replace(edit=edit)))
    assert identifier in result.accepted
    assert identifier not in {finding.id for finding in result.stopping}

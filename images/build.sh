#!/bin/sh
# Build one image of this folder without a push, on the base that gemma_serving/planning/data/images.json pins: `images/build.sh vllm-tpu-w4a16`.
# `gemma_serving/` has a link to this folder, because a wheel has its images for stacks that build one.
# Exit code 0: built. 1: the build failed, Docker has no buildx, or the disk is too small. 2: no such image. Needs Docker with buildx, and Python.
set -eu
cd "$(dirname "$0")/.."
python=python3
[ ! -x .venv/bin/python ] || python=.venv/bin/python
name=${1:-}
base=$("$python" -c '
import sys
from gemma_serving.planning.data.images import IMAGES
found = IMAGES.get(sys.argv[1])
print(f"{found.repository}@{found.digest}" if found is not None and found.build_context else "")' "$name")
if [ -z "$base" ]; then
    echo "images: image \"$name\" not found. Pass the name of a folder in images/." >&2
    exit 2
fi
if ! docker buildx version >/dev/null 2>&1; then
    echo "images: Docker has no buildx. Install docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's own packages)." >&2
    exit 1
fi
needed=$("$python" -c 'from gemma_serving.planning.data.overheads import IMAGE_ON_DISK_GIB; print(IMAGE_ON_DISK_GIB[1])')
root=$(docker info --format '{{.DockerRootDir}}')
free=$(df -Pk "$root" | awk 'NR == 2 {print int($4 / 1048576)}')
if [ "$free" -lt "$needed" ]; then
    echo "images: $root has $free GiB free, but the base with its layers needs up to $needed GiB. Free space, for example with \`docker system prune\`." >&2
    exit 1
fi
echo "images: building $name on $base, $free GiB free in $root" >&2
exec docker buildx build --platform linux/amd64 --build-arg "BASE_IMAGE=$base" --output type=cacheonly "images/$name"

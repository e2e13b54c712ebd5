#!/bin/sh
# One evening on Google Cloud: deploy an L4 and a TPU one after the other, use them, change one setting of each, and tear them down.
# docs/one-evening.md describes it. Run it in the folder with your settings files: GOOGLE_CLOUD_PROJECT=YOUR_PROJECT examples/one-evening.sh
#
# The stacks are evening-l4 (a copy of l4-12b-qat) and evening-tpu (a copy of tpu-v6e1). Each command's output, all times and the receipts go into
# one folder. The script tears down at each error, at its end, and on HUP, INT and TERM. A settings file stays until its receipt is clean, so the
# next start names what this one left.
set -u
LIMIT_USD=4
L4_S=3600           # from the L4's first `up` to its teardown
L4_BILLED_H=1.5     # that hour, 15 minutes until an idle instance ends, and the second instance of an update
TPU_S=14400         # two hours in the queue, one hour of run, two restarts
stack='' short='' child='' ends='' signalled='' failed=0

say() { printf '%s\n' "$*"; }
refuse() {
    say "one-evening: $*" >&2
    exit 2
}

# Run a command with its output in a file, and write its time. $1: the file's name. A command that the deadline or a signal ends gets TERM.
step() {
    log=$folder/$short-$1.log
    began=$(date +%s)
    name=$1
    shift
    say "$(date +%H:%M:%S)  $short-$name"
    "$@" </dev/null >"$log" 2>&1 &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        now=$(date +%s)
        if [ -n "$ends" ] && [ "$now" -ge "$ends" ]; then
            say "          The time for $stack is over."
            kill -TERM "$child" 2>/dev/null
            ends=''
        fi
        [ $(((now - began) % 300)) -ne 299 ] || say "          $(((now - began) / 60 + 1)) min: $(tail -n 1 "$log")"
        sleep 1
    done
    wait "$child"
    code=$?
    child=''
    say "$short-$name: $(($(date +%s) - began)) s, exit code $code: $*" >>"$folder/times.txt"
    [ "$code" -eq 0 ] || say "          Exit code $code: $(tail -n 1 "$log")"
    return "$code"
}

# Delete the stack, and its settings file after a clean receipt that holds nothing.
tear_down() {
    trap '' HUP INT TERM
    ends=''
    step teardown gemma teardown "$stack" --yes --receipt "$folder/receipt-$stack.json"
    torn=$?
    gone=$stack
    stack=''
    if [ "$torn" -ne 0 ] || ! grep -q '"clean": true' "$folder/receipt-$gone.json" 2>/dev/null; then
        failed=1
        say "$gone may still cost money. Run: gemma teardown $gone"
        return 1
    fi
    if grep -q '"held": \[\]' "$folder/receipt-$gone.json"; then
        rm -f "Pulumi.$gone.yaml"
    else
        say "Google holds the network of $gone for up to two hours, at no cost. Then run: gemma teardown $gone && rm Pulumi.$gone.yaml"
    fi
}

finish() {
    trap '' HUP INT TERM
    trap - EXIT
    if [ -n "$stack" ]; then tear_down; fi
    if [ -f "$folder/times.txt" ]; then
        entries >"$folder/entries.txt"
        say 'Assumptions of dev/docs/assumptions.md:'
        cat "$folder/entries.txt"
        say "Everything is in $folder."
        ! grep -q ': false$' "$folder/entries.txt" || failed=1
    fi
    exit "${signalled:-$failed}"
}

stop() {
    if [ -n "$child" ]; then
        say 'Stopping. The teardown follows; it takes some minutes.'
        kill -TERM "$child" 2>/dev/null
        while kill -0 "$child" 2>/dev/null; do sleep 1; done
    fi
    signalled=$1
    exit
}

# Deploy, use, change. Each failed step ends the stack.
use() {
    step doctor gemma doctor "$stack" &&
        step preview gemma preview "$stack" &&
        step up gemma up "$stack" --yes &&
        step smoke gemma smoke "$stack" --json &&
        step bench gemma bench "$stack" --preset quick --allow-invalid --out "$folder/bench-$stack" &&
        step set pulumi config set --stack "$stack" --path "gemma-serving:$1" "$2" &&
        step change gemma up "$stack" --yes
    used=$?
    step logs gemma logs "$stack"
    return "$used"
}

# Write the settings of a stack: a copy of another one, with a changed line. $1: the stack, $2: the other one, $3: a program of awk
settings() {
    short=$1
    step init gemma init "evening-$1" --like "$2" || return
    awk "$3" "Pulumi.evening-$1.yaml" >"$folder/settings" && cat "$folder/settings" >"Pulumi.evening-$1.yaml" && rm "$folder/settings" &&
        stack=evening-$1
}

l4() {
    settings l4 l4-12b-qat '{ print } /^ *gemma-serving:cloudRun:/ { print "    directVpc: false" }' &&
        step stage gemma stage_model "$stack" --yes && ends=$(($(date +%s) + L4_S)) && use cloudRun.directVpc true
}

tpu() {
    settings tpu tpu-v6e1 '{ sub(/maxRunDuration: .*/, "maxRunDuration: 1h"); print }' || return
    grep -q 'maxRunDuration: 1h' "Pulumi.$stack.yaml" || { say 'tpu-v6e1 has no tpu.maxRunDuration, so no TPU is requested.' && return 1; }
    ends=$(($(date +%s) + TPU_S))
    use vllm.maxModelLen 4096
}

# Print "ENTRY: false" if a log has the first expression, "ENTRY: true" if one has the second one, otherwise "ENTRY: not decided by these logs".
# $1: entry, $2: beginning of the logs' names, $3 and $4: expressions, or an empty text
entry() {
    verdict='not decided by these logs'
    if [ -n "$4" ] && grep -Eqs -e "$4" "$folder/$2"*.log; then verdict=true; fi
    if [ -n "$3" ] && grep -Eqs -e "$3" "$folder/$2"*.log; then verdict=false; fi
    say "$1: $verdict"
}

# The seconds in which the L4 loaded its weights without Direct VPC and with it, in this order.
loaded() {
    grep -Eos 'Loading weights took [0-9.]+' "$folder/l4-logs.log" | awk '
        { seconds[NR] = $4 }
        END {
            if (NR != 2) print "not decided by these logs"
            else print (seconds[1] >= 100 && seconds[1] < 200 && seconds[2] < 50) ? "true" : "false"
        }'
}

entries() {
    entry first-revision-before-its-grant l4-up '' ''
    entry hub-ids l4-stage '' ''
    entry service-disabled-without-errors '' 'has not been used in project' ''
    entry tpu-delete-needs-force tpu-up '' ''
    entry run-l4-driver l4- '[Ee]rror 803|driver version is insufficient' 'Application startup complete'
    entry disabled-api-keeps-resources l4-up '' ''
    entry node-patch tpu- '' 'Using max model len 4096'
    entry queued-run-ends tpu-up '' ''
    entry tpu-guest-attributes-namespace tpu-up 'published no guest attributes' '^evening-tpu deployed'
    entry tpu-boot-disk-left tpu- 'No space left on device' ''
    say "run-network-without-direct-vpc: $(loaded)"
    entry tpu-container-reaches-the-chips tpu- "nitialize backend 'tpu'|TPU initialization failed|No TPU" '"verdict": "passed", "passed": true'
    entry tpu-machine-writes-its-log tpu-logs 'no logs of stack' '^[0-9: -]+server '
    entry os-login-shuts-out-metadata-keys tpu- 'Permission denied \(publickey|4033: .not authorized' ''
}

# Print a number of a plan. $1: its key; then the stack and options
planned() {
    key=$1
    shift
    gemma plan "$@" --json | sed -n "s/^ *\"$key\": \([0-9.]*\),*\$/\1/p" | awk '{ printf "%.2f", $1; exit }'
}

[ -f Pulumi.yaml ] || refuse 'This folder has no Pulumi.yaml. Run the script in the folder with your settings files.'
[ -n "${GOOGLE_CLOUD_PROJECT:-}" ] || refuse 'GOOGLE_CLOUD_PROJECT is not set. Set it to an otherwise empty project.'
[ ! -d .venv/bin ] || PATH=$PWD/.venv/bin:$PATH
command -v gemma >/dev/null || refuse 'The command gemma is not on PATH. Follow step 1 of docs/get-started.md.'
left=''
for name in evening-l4 evening-tpu; do
    [ ! -e "Pulumi.$name.yaml" ] || left="$left $name"
done
for name in $left; do
    say "An earlier start left Pulumi.$name.yaml. What it left in Google Cloud:" >&2
    gemma teardown "$name" --dry-run >&2
    say "Run: gemma teardown $name && rm Pulumi.$name.yaml" >&2
done
[ -z "$left" ] || exit 1


tpu_usd=$(planned most_usd tpu-v6e1 --set tpu.maxRunDuration=1h)
l4_usd=$(planned usd_per_hour l4-12b-qat)
most_usd=$(awk -v tpu="${tpu_usd:-x}" -v l4="${l4_usd:-x}" -v hours=$L4_BILLED_H 'BEGIN { if (tpu * l4 > 0) printf "%.2f", tpu + l4 * hours }')
[ -n "$most_usd" ] || refuse 'The price of tpu-v6e1 or l4-12b-qat is unknown. Run: gemma plan tpu-v6e1 && gemma plan l4-12b-qat'
awk -v most="$most_usd" -v limit=$LIMIT_USD 'BEGIN { exit most > limit }' || refuse "The evening can cost \$$most_usd, more than \$$LIMIT_USD. Restore the shipped settings of tpu-v6e1 and l4-12b-qat."
say "This deploys evening-l4 and evening-tpu in project $GOOGLE_CLOUD_PROJECT, and tears them down. It takes two to five hours."
say "It costs at most \$$most_usd:"
say "- evening-tpu: \$$tpu_usd. Google deletes the TPU VM one hour after its start."
say "- evening-l4: \$$l4_usd per hour, for at most $L4_BILLED_H hours. This script tears it down after one hour; without requests, its instance ends after 15 minutes."
printf 'Deploy them? Write yes, or anything else to deploy nothing: '
read -r answer || answer=''
[ "$answer" = yes ] || refuse 'Nothing was deployed.'

folder=.work/evening/$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
trap finish EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM
trap '' PIPE
for use in l4 tpu; do
    $use || failed=1
    if [ -n "$stack" ]; then tear_down || break; fi
    trap 'stop 129' HUP
    trap 'stop 130' INT
    trap 'stop 143' TERM
done

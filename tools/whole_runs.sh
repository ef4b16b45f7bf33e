#!/usr/bin/env bash
# Runs the test command again and again, each time in a fresh clone of the last commit with empty caches.
#
#   tools/whole_runs.sh OUT RUNS [AT_ONCE [LOAD]]
#
# AT_ONCE (1) runs go at the same time, and so load each other; LOAD (0) further processes do nothing but take processor time. A run's
# output goes to OUT/<number>.log; OUT/runs gets a line for each. The status is 1 where one failed. VKEP_TEST_JOBS: see tools/test.sh.
set -uom pipefail  # m: each run is a process group, which an interrupt ends
if (($# < 2)); then
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=$2 at_once=${3:-1} load=${4:-0}
mkdir -p "$1"
out=$(cd "$1" && pwd)
made=$(mktemp -d)
busy=() tests=()
end() {
    for group in "${busy[@]}" "${tests[@]}"; do kill -- "-$group" 2>/dev/null; done
    wait
    rm -rf "$made"
}
trap end EXIT
trap 'exit 130' INT TERM
for ((k = 0; k < load; k++)); do
    while :; do :; done &
    busy+=($!)
done

one() { # NUMBER
    local clone=$made/$1/vkep began=$SECONDS status=0
    git clone -q "$root" "$clone"
    mkdir "$made/$1/home"
    env -u XDG_CACHE_HOME -u VKEP_CACHE_DIR -u VKEP_VENV HOME="$made/$1/home" VKEP_INSTALL="${VKEP_INSTALL:-yes}" \
        "$clone/tools/test.sh" >"$out/$1.log" 2>&1 || status=$?
    printf '%s of %s: status %d, %d s, %s\n' "$1" "$(git -C "$clone" rev-parse --short HEAD)" "$status" $((SECONDS - began)) \
        "$(grep -aE '[0-9]+ (passed|failed)' "$out/$1.log" | tail -n 1 | tr -d =)" >>"$out/runs"
    rm -rf "${made:?}/$1"
}

: >"$out/runs"
for ((k = 1; k <= runs; k++)); do
    while (($(jobs -rp | wc -l) - load >= at_once)); do
        wait -n
    done
    one "$k" &
    tests+=($!)
done
wait "${tests[@]}"
cat "$out/runs"
(($(grep -c ': status 0,' "$out/runs") == runs))

#!/bin/bash
# compare.sh [ROUNDS]: `nvmeof bench` against roce_floor, the bare packets of the same data path, on the same two cores in
# one run, taking turns. Prints the medians of ROUNDS (default 5) and their ratios. Needs the build (npm run setup), gcc,
# libisal-dev and liburing-dev; the target runs on core 0, the host on core 1.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
ROUNDS=${1:-5}
ADDRESS=127.$((RANDOM % 200 + 20)).$((RANDOM % 250 + 1)).$((RANDOM % 250 + 1))
NQN=nqn.2026-11.io.nvmeof:compare
WORK=$(mktemp -d)
TARGET=
finish() {
  [ -z "$TARGET" ] || kill "$TARGET" 2>/dev/null || true
  wait
  rm -rf "$WORK"
}
trap finish EXIT

gcc -O3 -march=native -o "$WORK/roce_floor" "$HERE/roce_floor.c" -lisal -luring -lpthread
NVMEOF="node $HERE/../cli/bin.js"
$NVMEOF target --export memory:256MiB --listen "$ADDRESS" --nqn "$NQN" --cores 0 >"$WORK/log" 2>&1 &
TARGET=$!
for _ in $(seq 100); do
  grep -q 'Stop with' "$WORK/log" && break
  kill -0 "$TARGET" 2>/dev/null || { cat "$WORK/log" >&2; exit 1; }
  sleep 0.1
done

# Options as in run-limits.sh. The floor's data lie in 256 MiB on both sides, as ours do.
TUNED=(--nt --copyhdr --prefetch 512 --rxbatch 4 --hostchunk 15 --msecs 2000 --json)
bench() { # RW QD
  $NVMEOF bench "$ADDRESS" "$NQN" --rw "$1" --qd "$2" --bs 4k --cores 1 --runtime 2 --warmup 0.5 --json
}
for ((i = 0; i < ROUNDS; i++)); do
  for qd in 1 32 128; do
    bench randread "$qd" >"$WORK/read-$qd-$i.bench"
    "$WORK/roce_floor" --qd "$qd" "${TUNED[@]}" >"$WORK/read-$qd-$i.floor"
    bench randwrite "$qd" >"$WORK/write-$qd-$i.bench"
    if [ "$qd" = 1 ]; then
      "$WORK/roce_floor" --op capsule --mode mmsg --qd 1 --msecs 2000 --nt --json >"$WORK/write-$qd-$i.floor"
    else
      "$WORK/roce_floor" --op write --qd "$qd" "${TUNED[@]}" >"$WORK/write-$qd-$i.floor"
    fi
  done
  echo "round $((i + 1)) of $ROUNDS" >&2
done

node - "$WORK" "$ROUNDS" <<'EOF'
const { readFileSync } = require('node:fs');
const [folder, rounds] = process.argv.slice(2);
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
const load = (name) => JSON.parse(readFileSync(`${folder}/${name}`, 'utf8'));
const ours = (side, qd, i) => {
  const job = load(`${side}-${qd}-${i}.bench`).jobs[0][side];
  return { iops: job.iops, p50: job.clat_ns.percentile['50.000000'] / 1000 };
};
const floor = (side, qd, i) => {
  const run = load(`${side}-${qd}-${i}.floor`);
  return { iops: run.iops, p50: run.p50_us };
};
console.log('4 KiB random         nvmeof                floor                 ratio');
console.log('                     IOPS     median       IOPS     median       IOPS   median');
for (const side of ['read', 'write']) {
  for (const qd of [1, 32, 128]) {
    const all = (pick, key) => median(Array.from({ length: rounds }, (_, i) => pick(side, qd, i)[key]));
    const [a, b] = [ours, floor].map((pick) => ({ iops: all(pick, 'iops'), p50: all(pick, 'p50') }));
    const cell = ({ iops, p50 }) => `${iops.toFixed(0).padStart(8)} ${p50.toFixed(1).padStart(8)} us`;
    const ratio = `${(a.iops / b.iops).toFixed(2)}   ${(a.p50 / b.p50).toFixed(2)}`;
    console.log(`${side.padEnd(5)} depth ${String(qd).padEnd(5)} ${cell(a)}  ${cell(b)}      ${ratio}`);
  }
}
EOF

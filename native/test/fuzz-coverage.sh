#!/bin/bash
# Which lines of the parsers the fuzz targets reach, with the kept corpus and FUZZ_SECONDS (60) of mutation each; 0: with the
# corpus alone. Exits 1 when a parser is below 95 %. Called by `make fuzz-coverage` with the folder of the instrumented programs.
#   ANNOTATE=1   names the lines that were not reached
set -euo pipefail
cd "$(dirname "$0")"
out=$1
seconds=${FUZZ_SECONDS:-60}
limit=-max_total_time=$seconds
((seconds > 0)) || limit=-runs=0
required=95

# What takes apart bytes that a stranger sent: packets, messages of connection management, capsules with their SGLs and
# commands, the packets of a queue pair in both directions, and what clients say: NBD's, and those over shared memory.
parsers=(
  rdma/soft/packet.cc
  rdma/soft/cm/{mad,request_check,agent_messages}.cc
  rdma/soft/{responder,read_responder,unreliable_responder,completer}.cc
  attach/client/{client_input,server_rings,client_session}.cc
  nvmf/{capsule,sgl,io_commands,target_receive}.cc
  attach/nbd/{handshake,request}.cc
)

# The tools of the clang that built the programs.
version=$(clang++ -dumpversion | cut -d. -f1)
tool() {
  if command -v "llvm-$1-$version" >/dev/null; then echo "llvm-$1-$version"; else echo "llvm-$1"; fi
}
for name in profdata cov; do
  command -v "$(tool "$name")" >/dev/null || {
    echo "$(tool "$name") is missing: apt-get install llvm" >&2
    exit 2
  }
done

programs=("$out"/*_fuzz)
rm -f "$out"/*.profraw
for program in "${programs[@]}"; do
  name=$(basename "$program" _fuzz)
  work=$out/corpus/$name
  rm -rf "$work"
  mkdir -p "$work"
  echo "== $name (coverage, $seconds s)"
  LLVM_PROFILE_FILE=$out/$name.profraw "$program" "$limit" -timeout=10 -verbosity=0 \
    -print_final_stats=0 -artifact_prefix="$out/$name-" "$work" "corpus/$name" 2>"$out/$name.log" ||
    { tail -n 20 "$out/$name.log" >&2; exit 1; }
done
"$(tool profdata)" merge -sparse "$out"/*.profraw -o "$out/fuzz.profdata"

"$(tool cov)" export -format=lcov -instr-profile "$out/fuzz.profdata" "${programs[0]}" \
  "${programs[@]/#/-object=}" >"$out/fuzz.lcov"
awk -F '[:,]' -v required="$required" -v list="${parsers[*]}" -v annotate="${ANNOTATE:-}" '
  BEGIN { wanted = split(list, names, " "); for (i in names) parser[names[i]] = 1 }
  /^SF:/ { file = $2; sub(/.*\/native\/(test\/..\/)?/, "", file); missed = "" }
  /^DA:/ { if ($3 == 0) missed = missed " " $2 }
  /^LF:/ { found = $2 }
  /^LH:/ { hit = $2 }
  /^end_of_record/ && file in parser {
    files++
    share = 100 * hit / found
    low = share < required
    failed += low
    printf "%-34s %4d of %4d lines  %5.1f %%%s\n", file, hit, found, share, low ? "  below " required " %" : ""
    if ((annotate != "" || low) && missed != "") print "   not reached:" missed
  }
  END {
    if (files != wanted) { print "figures of " files + 0 " parsers, wanted: " wanted; exit 1 }
    exit failed > 0
  }' "$out/fuzz.lcov"

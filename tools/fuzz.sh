#!/usr/bin/env bash
# Runs each fuzz target of the given packages for FUZZTIME, as many targets at the same time
# as there are cores. Fails if a target fails; the input that makes it fail is then in
# testdata/fuzz of its package.
#
# Builds each package once for all of its targets.
set -eu

go=${GO:-go}
export FUZZTIME=${FUZZTIME:-10s}
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT

# A line for each target: directory of the package, test program, name of the target.
: >"$bin/targets"
dirs=$($go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "$@")
for dir in $dirs; do
	grep -qs '^func Fuzz' "$dir"/*_test.go || continue
	program=$bin/${dir//\//-}
	(cd "$dir" && $go test -c -fuzz . -o "$program" .)
	targets=$(cd "$dir" && "$program" -test.list '^Fuzz')
	for target in $targets; do
		echo "$dir $program $target" >>"$bin/targets"
	done
done
[ -s "$bin/targets" ] || exit 0

fuzz() {
	local name="${1#"$PWD"/} $3" out="$2.$3" rc=0
	# New inputs go to the directory that go test -fuzz uses.
	cache=$($GOCMD env GOCACHE)/fuzz/$($GOCMD -C "$1" list .)
	# Without a limit the fuzzer minimizes each input with new coverage for up to a minute.
	(cd "$1" && "$2" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 100x \
		-test.parallel 1 -test.fuzzcachedir "$cache" -test.timeout 0) >"$out" 2>&1 || rc=1
	# If a worker process of the fuzzer was in the middle of an input when the time was over, the
	# coordinator process may print this line and fail, although no input has failed. If an input
	# has failed, another line says so.
	if [ $rc != 0 ] && grep -qx '    context deadline exceeded' "$out" &&
		! grep -qi -e 'failing input' -e 'failure while testing' -e panic: "$out"; then
		rc=0
	fi
	if [ $rc = 0 ]; then
		echo "ok   $name: $(grep -o 'execs: [0-9]*' "$out" | tail -n 1)"
	else
		echo "FAIL $name"
		cat "$out"
	fi
	return $rc
}
export -f fuzz
export GOCMD=$go
xargs -P "$(nproc)" -L 1 bash -c 'fuzz "$@"' fuzz <"$bin/targets"

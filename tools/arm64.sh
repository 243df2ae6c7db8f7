#!/usr/bin/env bash
# Runs tests for Linux on arm64 under qemu-user, with -test.short. It tests the packages that contain
# code for particular processors or depend on the order of loads and stores, and package internal/mpi.
#
# Each line below is a package, the tests to run, and the tests to skip. The script skips:
# - tests that start programs: the kernel would need qemu registered as their interpreter
#   (Hosts, HostRefuses, Programs, MainContext), or that start the go command (RaceDetector,
#   WrongOpsDoNotCompile);
# - tests of what qemu does differently: it allows every madvise (NothingIsDeregistered), and
#   it allocates tables for memory that is only reserved (MoreThanThereIsMemory);
# - models and counts of allocations, which are the same on every processor (Model,
#   EveryOrder, ByChance, Allocat);
# - tests that take too long or too much memory (LegalFaults, Accumulates, HugeMessages,
#   TestCollectives; the second run of internal/mpi runs a part of TestCollectives).
#
# A run fails if no test of it passes. If the regular expression names subtests, at least one
# of these must pass. Each run has a time limit. The script has one too, which is below the
# limit of its stage in .ci/run, so that the script itself ends the runs and prints the ends
# of their logs. Each run has its own working directory with the testdata of the package. If a
# test executes a program for arm64 through sh, sh reads the program as a script, which may
# write files to the working directory.
set -eu

go=${GO:-go}
run_limit=480    # seconds that a run may take
script_limit=780 # seconds that the script may take; the stage may take 900, and also installs qemu
end=$(($(date +%s) + script_limit))
work=$(mktemp -d)

# Shows the end of the log of each run that has no result yet. A signal of timeout or of the
# terminal ends all processes of the script's group; then the script runs its traps.
show_unfinished() {
	local log
	for log in "$work"/*.log; do
		if [ -e "$log" ] && [ ! -e "$log.done" ]; then
			echo "arm64: ended without a result: $(head -n 1 "$log")"
			tail -n 50 "$log"
		fi
	done
}
trap 'show_unfinished; rm -rf "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

packages() {
	cat <<-'END'
		internal/atomics	.	^$
		internal/bytecopy	.	^$
		internal/kernel	.	^$
		internal/sys	.	^$
		internal/coll	.	Model|EveryOrder
		internal/engine	.	Model|NothingIsDeregistered|LegalFaults
		transport/shm	ConformanceByMessages|Ring|Writer|Room|MemoryLeft|Scribble|Heap$|Layout|Atomics|NoSleep|WakeAll|Fuzz	^$
		internal/mpi/calls	.	^$
		internal/mpi	.	Hosts|HostRefuses|Programs|MainContext|RaceDetector|WrongOpsDoNotCompile|MoreThanThereIsMemory|HugeMessages|Allocat|TestCollectives$|Accumulates|LegalFaults
		internal/mpi	TestCollectives$/auto/ranks=[25]$	^$
	END
}

# Runs tests of the package $1: those that match $2, without those that match $3. $4 is a name for the
# run's log and working directory.
short() {
	local dir=$1 run=$2 skip=$3 log=$work/$4.log
	local start left status=0 cwd=$work/$4 indent="" passed
	start=$(date +%s)
	left=$((end - start))
	left=$((left < run_limit ? left : run_limit))
	if [ "$left" -le 0 ]; then
		echo "FAIL	$dir	$run	not begun: the limit of the script is over"
		return 1
	fi
	mkdir "$cwd"
	echo "$dir	$run" >"$log"
	[ ! -d "$dir/testdata" ] || cp -R "$dir/testdata" "$cwd"
	# The test binary ends itself at the limit, and writes its stacks. If it hangs, timeout ends it.
	(cd "$cwd" && exec timeout --foreground -k 5 $((left + 20)) qemu-aarch64 "$work/${dir//\//-}.test" -test.v -test.short \
		-test.timeout "${left}s" -test.run "$run" -test.skip "$skip") >>"$log" 2>&1 || status=$?
	touch "$log.done"
	case $run in */*) indent=" \{4,\}" ;; esac # the lines of subtests are indented
	passed=$(grep -c "^$indent--- PASS" "$log" || true)
	start=$(($(date +%s) - start))
	if [ "$status" = 0 ] && [ "$passed" -gt 0 ]; then
		echo "ok	$dir	$run	$passed passed	$start s"
		return 0
	fi
	case $status in
	0) echo "FAIL	$dir	$run	no test ran" ;;
	124 | 137)
		echo "FAIL	$dir	$run	killed after $start s; the end of its log:"
		tail -n 100 "$log"
		;;
	*)
		grep -Ev '^ *(=== |--- PASS)' "$log" || true
		echo "FAIL	$dir	$run	exit code $status after $start s"
		;;
	esac
	return 1
}
export -f short
export work end run_limit

for dir in $(packages | cut -f1 | sort -u); do
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $go test -c -o "$work/${dir//\//-}.test" "./$dir"
done
packages | tac | awk -F'\t' -v OFS='\n' '{ print $1, $2, $3, NR }' |
	xargs -d '\n' -n 4 -P "$(nproc)" bash -c 'short "$@"' short

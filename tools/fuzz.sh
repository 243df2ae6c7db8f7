#!/usr/bin/env bash
# Runs each fuzz target of the packages named for FUZZTIME, one after another,
# and fails if any of them does.
set -eu

go=${GO:-go}
for dir in $($go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "$@"); do
	grep -qs '^func Fuzz' "$dir"/*_test.go || continue
	for target in $($go test -list '^Fuzz' "$dir" | grep '^Fuzz'); do
		echo "== ${dir#"$PWD"/} $target"
		# Without a limit an input that is only interesting is made smaller for a minute.
		$go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" -fuzzminimizetime 100x "$dir"
	done
done

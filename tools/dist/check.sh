#!/usr/bin/env bash
# Checks the files that tools/dist/dist.sh has written to the directory dist: their hashes, what the
# packages contain, and that gorun from them runs a job.
set -eu
cd "$(dirname "$0")/../../dist"

fail() {
	echo "dist: $*" >&2
	exit 1
}

version=$(cat ../launcher/VERSION)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sha256sum --check --quiet SHA256SUMS
[ "$(ls | wc -l)" = 7 ] || fail "expected 7 files, found: $(ls)"

files="/usr/bin/gorun
/usr/lib/systemd/system/gorun-agent@.service
/usr/share/bash-completion/completions/gorun
/usr/share/doc/gorun/CHANGELOG.md
/usr/share/doc/gorun/copyright
/usr/share/doc/gorun/weft.def
/usr/share/fish/vendor_completions.d/gorun.fish
/usr/share/man/man1/gorun.1.gz"
for deb in gorun_"$version"_{amd64,arm64}.deb; do
	got=$(dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n 's/^\.\(.*[^/]\)$/\1/p' | sort)
	want=$(printf '%s\n/usr/share/zsh/vendor-completions/_gorun' "$files" | sort)
	[ "$got" = "$want" ] || fail "$deb contains: $got"
done
for rpm in gorun-"$version"-1.{x86_64,aarch64}.rpm; do
	got=$(rpm --query --list --package "$rpm" | sort)
	want=$(printf '%s\n/usr/share/zsh/site-functions/_gorun' "$files" | sort)
	[ "$got" = "$want" ] || fail "$rpm contains: $got"
done

for arch in amd64 arm64; do
	tar -xzf gorun-"$version"-linux-$arch.tar.gz -C "$work"
	dpkg-deb --extract gorun_"$version"_$arch.deb "$work/$arch"
	gorun=$work/$arch/usr/bin/gorun
	cmp "$gorun" "$work/gorun-$version-linux-$arch/gorun"
	! readelf --program-headers "$gorun" | grep -q INTERP || fail "gorun for $arch is not static"
done
readelf --file-header "$work/arm64/usr/bin/gorun" | grep -q 'Machine: *AArch64' || fail "gorun for arm64 is for another processor"

export PATH=$work/amd64/usr/bin:$PATH
gorun -version | grep -q "^gorun $version " || fail "gorun -version: $(gorun -version)"
[ "$(gorun -np 3 echo rank)" = "$(printf 'rank\nrank\nrank')" ] || fail "gorun does not run a job"
MANPATH=$work/amd64/usr/share/man man gorun | grep -q 'number of ranks' || fail "no manual page"
echo "dist: all checks passed"

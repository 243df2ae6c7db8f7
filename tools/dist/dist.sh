#!/usr/bin/env bash
# Writes the files of a release to the directory dist: for each processor an archive, a Debian
# package and an RPM package with gorun, its manual page and its completion for shells; and their
# SHA-256 in SHA256SUMS. gorun is static and without libfabric. The same commit gives the same
# files. The argument "development" leaves the mark of a release out of gorun's version.
set -eu
cd "$(dirname "$0")/../.."

go=${GO:-go}
VERSION=$(cat launcher/VERSION)

# The time of the commit; without git's data, or if another user owns them, the time of this run.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory='*' log -1 --format=%ct 2>/dev/null || date +%s)}
export VERSION SOURCE_DATE_EPOCH
mark="-X github.com/weft-hpc/weft/launcher.released=yes"
[ "${1:-}" = development ] && mark=

rm -rf dist
mkdir dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$go -C tools/dist build -o "$work/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
$go build -o "$work/gorun" ./cmd/gorun # for the machine on which this runs

for ARCH in amd64 arm64; do
	name=gorun-$VERSION-linux-$ARCH
	DIR=$work/$name
	export ARCH DIR
	mkdir "$DIR"
	CGO_ENABLED=0 GOOS=linux GOARCH=$ARCH $go build -trimpath -ldflags "-s -w $mark" -o "$DIR/gorun" ./cmd/gorun
	"$work/gorun" -man | gzip -9n >"$DIR/gorun.1.gz"
	for shell in bash zsh fish; do
		"$work/gorun" -completion $shell >"$DIR/gorun.$shell"
	done
	cp LICENSE CHANGELOG.md deploy/systemd/gorun-agent@.service deploy/apptainer/weft.def "$DIR"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -c "$name" |
		gzip -9n >"dist/$name.tar.gz"
	for kind in deb rpm; do
		"$work/nfpm" package --config tools/dist/nfpm.yaml --packager $kind --target dist >"$work/log" || { cat "$work/log"; exit 1; }
	done
done
cd dist
sha256sum -- * >SHA256SUMS
cat SHA256SUMS

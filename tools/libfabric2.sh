#!/usr/bin/env bash
# Builds libfabric 2.x for tests: tools/libfabric2.sh FOLDER. Headers, library, programs and a
# pkg-config file go to FOLDER, which may be moved afterwards. If FOLDER has them already, the script
# does nothing. Only providers that need no adapter are built. The source is that of a Debian package
# and comes from the archive that apt is configured for.
set -euo pipefail

version=2.1.0
source=pool/main/libf/libfabric/libfabric_$version.orig.tar.xz
sum=1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df
providers=(verbs efa psm2 psm3 opx usnic mrail ucx lnx cxi lpp dmabuf_peer_mem)

# built holds the hash of the script that has built the folder: another script may build another
# library.
folder=$(realpath -m "${1:?tools/libfabric2.sh FOLDER}")
tools=$(dirname "$(realpath "$0")")
script=$(sha256sum <"$tools/libfabric2.sh")
[ "$(cat "$folder/built" 2>/dev/null)" != "$script" ] || exit 0

"$tools/install.sh" autoreconf=autoconf automake=automake libtoolize=libtool xz=xz-utils make=make

# The build must not see what the Makefile sets for weft: configure takes INSTALL as the program that
# installs files.
unset INSTALL MAKEFLAGS MFLAGS MAKEOVERRIDES PKG_CONFIG_PATH LD_LIBRARY_PATH

mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '!/security/ && !n++')
[ -n "$archive" ] || { echo "libfabric $version: apt's configuration names no archive" >&2; exit 1; }
curl -fsSL --retry 3 --max-time 120 -o source.tar.xz "$archive$source"
echo "$sum  source.tar.xz" | sha256sum --check --quiet
tar -xf source.tar.xz --strip-components=1

# Prints the end of the log of a step that fails.
step() {
	"$@" >log 2>&1 || { tail -n 50 log >&2; echo "libfabric $version: failed: $*" >&2; exit 1; }
}
echo "libfabric $version: building it"
step autoreconf -iv
step ./configure --prefix="$folder" --disable-static "${providers[@]/#/--disable-}"
step make -s -j"$(nproc)"
step make -s install DESTDIR="$work/root"
# The paths in the pkg-config file are those of the file's place.
sed -i "s,^prefix=.*,prefix=\${pcfiledir}/../..," "root$folder/lib/pkgconfig/libfabric.pc"
echo "$script" >"root$folder/built"
rm -rf "$folder" # of another script
mv "root$folder" "$folder"

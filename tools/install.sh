#!/usr/bin/env bash
# Installs missing Debian packages that tests need: MPICH and Open MPI, whose launchers and
# programs weft is tested with, libfabric, a C compiler, Chromium for gorun's live page, the shells
# in which gorun completes command lines, a debugger, and the programs with which internal/testbed
# makes hosts, including Slurm. If it cannot install a package, it prints what is missing. Then the
# tests that need the package fail, and without libfabric the tests of that transport are not built.
# Each argument PROGRAM=PACKAGE adds a program to install and the Debian package that contains it.
set -u
PATH=$PATH:/usr/sbin:/sbin # daemons are there, but not every user's PATH has these

declare -A package=(
	[mpiexec.hydra]=mpich
	[mpicc.mpich]=libmpich-dev
	[mpirun.openmpi]=openmpi-bin
	[mpicc.openmpi]=libopenmpi-dev
	[gcc]=gcc
	[pkg-config]=pkg-config
	[fi_pingpong]=libfabric-bin
	[curl]=curl
	[ip]=iproute2
	[ssh]=openssh-client
	[sshd]=openssh-server
	[munged]=munge
	[srun]=slurm-wlm
	[slurmd]=slurm-wlm
	[slurmctld]=slurm-wlm
	[gdb]=gdb
	[gdbserver]=gdbserver
	[chromium]=chromium
	[zsh]=zsh
	[fish]=fish
)

for argument in "$@"; do
	package[${argument%%=*}]=${argument#*=}
done

missing() {
	local program
	for program in "${!package[@]}"; do
		command -v "$program" >/dev/null || echo "${package[$program]}"
	done | sort -u
	[ -e /usr/include/stdio.h ] || echo libc6-dev
	[ -e /usr/include/rdma/fabric.h ] || echo libfabric-dev
}

want=$(missing | tr '\n' ' ')
[ -n "$want" ] || exit 0

command="apt-get update && apt-get install -y --no-install-recommends $want"
if [ "${INSTALL:-yes}" = no ]; then
	reason="INSTALL=no"
elif ! command -v apt-get >/dev/null; then
	reason="apt-get is not installed"
elif [ "$(id -u)" != 0 ]; then
	reason="only root can install; run: $command"
else
	echo "install: tests need ${want% }; installing them"
	export DEBIAN_FRONTEND=noninteractive
	# Tests start daemons of their own. Keep the packages from starting others.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\n# Exists while tools/install.sh of weft runs.\nexit 101\n' >$policy && chmod 755 $policy
	fi
	# shellcheck disable=SC2086 # a list of words
	if apt-get update -qq && apt-get install -y -qq --no-install-recommends $want; then
		reason="the packages do not contain them"
	else
		reason="apt-get failed"
	fi
	want=$(missing | tr '\n' ' ')
	[ -n "$want" ] || exit 0
fi
echo "install: missing: ${want% } ($reason); the tests that need them will fail" >&2

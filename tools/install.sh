#!/usr/bin/env bash
# Installs the Debian packages that tests need and that are missing: MPICH and
# Open MPI, whose launchers and programs weft is tested with, libfabric, a C
# compiler, and what internal/testbed makes hosts with, which includes Slurm.
# Where it cannot, it says what is missing; the tests that need it then fail, and
# those of the libfabric transport are not even built. Each argument PROGRAM=PACKAGE adds a
# program to install, and the Debian package that contains it.
set -u
PATH=$PATH:/usr/sbin:/sbin # not in that of every user, but daemons are there

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
	reason="there is no apt-get"
elif [ "$(id -u)" != 0 ]; then
	reason="only root can install; run: $command"
else
	echo "install: tests need ${want% }; installing them"
	export DEBIAN_FRONTEND=noninteractive
	# Tests start daemons of their own; nobody asked for others.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\n# While tools/install.sh of weft runs.\nexit 101\n' >$policy && chmod 755 $policy
	fi
	# shellcheck disable=SC2086 # a list of words
	if apt-get update -qq && apt-get install -y -qq --no-install-recommends $want; then
		reason="the packages do not hold them"
	else
		reason="apt-get failed"
	fi
	want=$(missing | tr '\n' ' ')
	[ -n "$want" ] || exit 0
fi
echo "install: missing: ${want% } ($reason); the tests that need them will fail" >&2

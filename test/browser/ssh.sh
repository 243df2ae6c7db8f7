#!/bin/sh
# Takes the place of ssh in the test: it runs the command of a host on this one.
while :; do
	case $1 in
	-[olpF]) shift 2 ;;
	-*) shift ;;
	*) break ;;
	esac
done
shift # the host
exec sh -c "$*"

#!/bin/sh
# Finds sentences that are hard to read: make lint. Arguments: files or folders to
# look at; default: every file of the repository.
#
# In comments, messages and pages, "who" follows a noun ("users who", not "who waits"),
# and "is told", "tells of", "but for" and "anew" are not used.
cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- .
nouns='those|people|person|users?|anyone|everyone|someone|somebody|nobody|newcomers?|readers?|programmers?|engineers?|developers?|administrators?|callers?|many'
bad=$(
	git grep -nIiwE "is told|are told|was told|tells of|tell of|told of|but for|anew" -- "$@" ':!tools/words.sh' ':!*.sum' ':!*LICENSE'
	git grep -nIiwE "whom?" -- "$@" ':!tools/words.sh' ':!*.sum' ':!*LICENSE' | grep -viE "\b($nouns),? whom?\b"
)
[ -z "$bad" ] && exit 0
printf '%s\n' "$bad"
echo "words that are hard to read: see tools/words.sh" >&2
exit 1

package remote

import (
	"fmt"
	"strconv"
	"strings"
)

// script is what ssh has run on the host. The login shell of the user, whichever it
// is, has to pass it on to sh, hence what it must not contain: single quotes,
// backslashes (fish), exclamation marks and line ends (csh).
//
// A program that is found has to be the one that is looked for, since it gets the
// stream, and with it the job's secret. It is hashed and not asked, as who asks runs
// it; and it is used only where nobody else can put another in its place meanwhile.
//
// The variables must not be any that the user's environment exports, since the agent
// and the ranks inherit that; nor may the script change the umask or the directory.
//
// $1 the hash, $2 the size of gorun, $3 its path on the parent's host, $4 a word that
// nobody else has, $5 the path that the user has configured, or nothing.
var script = strings.Join([]string{
	`set -f`,
	// Unquoted: words of several lines become one.
	fmt.Sprintf(`weft_fail() { echo; echo %s %d %s $1; exit 1; }`, magic, Version, verbFail),
	`weft_clean() { rm -f "$weft_t"; }`,
	`weft_hash() { LC_ALL=C "$1" -agent -hash </dev/null; }`,

	`if [ -n "$5" ]; then weft_p=$5`,
	`case $weft_p in "~/"*) weft_p=$HOME/${weft_p#??};; esac`,
	`command -v "$weft_p" >/dev/null || weft_fail "$weft_p: no such program there, which is configured to be the agent"`,
	`exec "$weft_p" -agent; fi`,

	`weft_u=$(id -u) || weft_u=0; weft_g=0`,
	// The group of the user alone, as distributions make it.
	`if [ "$(id -un)" = "$(id -gn)" ]; then weft_g=$(id -g); fi`,
	// weft_own PATH -: nobody but the user and root may change what stands there, or,
	// of a directory, what it holds; PATH s: with a sticky bit others may add to it. An
	// access control list (+) may name anybody as far as the group's bits go.
	`weft_own() { set -- "$2" $(LC_ALL=C ls -ldn "$1" 2>/dev/null)`,
	`case $4 in 0|$weft_u) ;; *) return 1;; esac`,
	`case $1$2 in s?????????[tT]*) return 0;; esac`,
	`case $2 in ????????w*|?????w????+*) return 1;; ?????w*) case $5 in 0|$weft_g) ;; *) return 1;; esac;; esac; }`,
	// Nor may anybody put another file at PATH, which has no links, before it is run.
	`weft_safe() { weft_q=${1%/*}; weft_own "$1" - && weft_own "${weft_q:-/}" - || return 1`,
	`while [ -n "$weft_q" ]; do weft_q=${weft_q%/*}; weft_own "${weft_q:-/}" s || return 1; done; }`,
	`weft_sum() { sha256sum <"$1" || openssl dgst -sha256 -r <"$1" || shasum -a 256 <"$1"; }`,
	// What is safe is asked itself where nothing there can tell.
	`weft_is() { case $(weft_sum "$1" 2>/dev/null) in "$2 "*) ;; "") [ "$(weft_hash "$1" 2>/dev/null)" = "$2" ];; *) return 1;; esac; }`,

	`for weft_p in "$3" "$(command -v gorun)"; do weft_p=$(readlink -f "$weft_p" 2>/dev/null)`,
	`if [ -f "$weft_p" ] && [ -x "$weft_p" ] && weft_safe "$weft_p" && weft_is "$weft_p" "$1"; then exec "$weft_p" -agent; fi; done`,

	`weft_d=${XDG_CACHE_HOME:-$HOME/.cache}/weft`,
	`weft_p=$weft_d/` + cachePrefix + `$1`,
	`if [ -f "$weft_p" ] && [ -x "$weft_p" ] && weft_own "$weft_p" - && weft_own "$weft_d/." - && weft_is "$weft_p" "$1"; then exec "$weft_p" -agent; fi`,

	`weft_e=$({ umask 077; LC_ALL=C mkdir -p "$weft_d"; } 2>&1) || weft_fail "$weft_e"`,
	`weft_own "$weft_d/." - || weft_fail "$weft_d: others than $(id -un) may write there: take their right away, or set XDG_CACHE_HOME there"`,
	`weft_t=$weft_d/` + partPrefix + `$4`,
	`trap "exit 1" 1 2 13 15`,
	`trap weft_clean 0`,
	fmt.Sprintf(`echo; echo %s %d %s $(uname -s -m) "$weft_d"`, magic, Version, verbSend),
	// head may read more than it needs: nothing follows before the greeting.
	`weft_e=$({ umask 077; LC_ALL=C head -c "$2" >"$weft_t"; } 2>&1)`,
	`[ "$({ wc -c <"$weft_t"; } 2>/dev/null)" -eq "$2" ] 2>/dev/null || weft_fail "$weft_t: ${weft_e:-the copy broke off}"`,
	`chmod 700 "$weft_t"`,
	`weft_e=$(weft_hash "$weft_t" 2>&1)`,
	`case $weft_e in "$1") ;; *"ermission denied"*) weft_fail "$weft_e: is $weft_d on a file system that is mounted noexec?";; *) weft_fail "$weft_t does not run: $weft_e";; esac`,
	`weft_e=$(LC_ALL=C mv -f "$weft_t" "$weft_p" 2>&1) || weft_fail "$weft_e"`,
	`trap - 0 1 2 13 15`,
	`exec "$weft_p" -agent`,
}, "; ")

// command is what the user's shell on the host is asked to do.
func command(exe Executable, word, agent string) string {
	var b strings.Builder
	b.WriteString("exec /bin/sh -c ")
	for i, arg := range []string{script, magic, exe.Hash, strconv.FormatInt(exe.Size, 10), exe.Path, word, agent} {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(quote(arg))
	}
	return b.String()
}

// quote makes one word of s for sh, csh and fish.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for _, c := range []byte(s) {
		switch c {
		case '\'', '\\', '!':
			b.WriteString(`'\`)
			b.WriteByte(c)
			b.WriteByte('\'')
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

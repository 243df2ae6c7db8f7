package remote

import (
	"fmt"
	"strconv"
	"strings"
)

// script is the shell script that ssh runs on the host. The user's login shell, of any kind, gets it
// as one word in single quotes and must pass it on to sh unchanged. So the script must not contain
// single quotes, backslashes (special in fish), exclamation marks or line ends (special in csh).
//
// The script looks for a program on the host that is the same gorun. The program that it finds gets
// the stream, and so the job's secret. Therefore the script uses the program only if no other user
// can replace that program before it runs. The script does not run the program to ask for its hash,
// but computes the hash by sha256sum or a similar program if the host has one. A path that the user
// has configured ($5) is not checked.
//
// The script's variables have names that no user's environment exports, because the agent and the
// ranks inherit the environment. The script does not change the umask or the directory, either.
//
// $1 is the hash and $2 the size of gorun, $3 its path on the parent's host, $4 a unique word, and $5
// the path that the user has configured, or empty.
var script = strings.Join([]string{
	`set -f`,
	// weft_fail TEXT reports that the script has failed. $1 is unquoted, so that a text of several
	// lines becomes one line.
	fmt.Sprintf(`weft_fail() { echo; echo %s %d %s $1; exit 1; }`, magic, Version, verbFail),
	`weft_clean() { rm -f "$weft_t"; }`,
	`weft_hash() { LC_ALL=C "$1" -agent -hash </dev/null; }`,

	`if [ -n "$5" ]; then weft_p=$5`,
	`case $weft_p in "~/"*) weft_p=$HOME/${weft_p#??};; esac`,
	`command -v "$weft_p" >/dev/null || weft_fail "$weft_p: no such program on this host, but -agent-path names it"`,
	`exec "$weft_p" -agent; fi`,

	`weft_u=$(id -u) || weft_u=0; weft_g=0`,
	// weft_g is the user's group if it has the user's name, because distributions make such a group
	// for the user alone. Otherwise it is root's group, 0.
	`if [ "$(id -un)" = "$(id -gn)" ]; then weft_g=$(id -g); fi`,
	// weft_own PATH - succeeds if only the user, root and the members of the groups 0 and weft_g
	// may change the file, or the contents of the directory. weft_own PATH s also accepts a
	// directory with the sticky bit that others may add to. An access control list (+) may give any
	// user the rights that the group's bits show.
	`weft_own() { set -- "$2" $(LC_ALL=C ls -ldn "$1" 2>/dev/null)`,
	`case $4 in 0|$weft_u) ;; *) return 1;; esac`,
	`case $1$2 in s?????????[tT]*) return 0;; esac`,
	`case $2 in ????????w*|?????w????+*) return 1;; ?????w*) case $5 in 0|$weft_g) ;; *) return 1;; esac;; esac; }`,
	// weft_safe PATH succeeds if no other user can change the file at PATH, or replace it before it
	// runs. PATH contains no symbolic links.
	`weft_safe() { weft_q=${1%/*}; weft_own "$1" - && weft_own "${weft_q:-/}" - || return 1`,
	`while [ -n "$weft_q" ]; do weft_q=${weft_q%/*}; weft_own "${weft_q:-/}" s || return 1; done; }`,
	`weft_sum() { sha256sum <"$1" || openssl dgst -sha256 -r <"$1" || shasum -a 256 <"$1"; }`,
	// weft_is PATH HASH succeeds if the program at PATH has this hash. If the host has no program
	// that computes hashes, weft_is runs the program at PATH to ask for its hash. That is safe,
	// because the caller has checked before by weft_safe or weft_own that no other user can change
	// the program.
	`weft_is() { case $(weft_sum "$1" 2>/dev/null) in "$2 "*) ;; "") [ "$(weft_hash "$1" 2>/dev/null)" = "$2" ];; *) return 1;; esac; }`,

	`for weft_p in "$3" "$(command -v gorun)"; do weft_p=$(readlink -f "$weft_p" 2>/dev/null)`,
	`if [ -f "$weft_p" ] && [ -x "$weft_p" ] && weft_safe "$weft_p" && weft_is "$weft_p" "$1"; then exec "$weft_p" -agent; fi; done`,

	`weft_d=${XDG_CACHE_HOME:-$HOME/.cache}/weft`,
	`weft_p=$weft_d/` + cachePrefix + `$1`,
	`if [ -f "$weft_p" ] && [ -x "$weft_p" ] && weft_own "$weft_p" - && weft_own "$weft_d/." - && weft_is "$weft_p" "$1"; then exec "$weft_p" -agent; fi`,

	`weft_e=$({ umask 077; LC_ALL=C mkdir -p "$weft_d"; } 2>&1) || weft_fail "$weft_e"`,
	`weft_own "$weft_d/." - || weft_fail "$weft_d: users other than $(id -un) may write there: remove their permission, or set XDG_CACHE_HOME on this host"`,
	`weft_t=$weft_d/` + partPrefix + `$4`,
	`trap "exit 1" 1 2 13 15`,
	`trap weft_clean 0`,
	fmt.Sprintf(`echo; echo %s %d %s $(uname -s -m) "$weft_d"`, magic, Version, verbSend),
	// head may read more than $2 bytes from the stream. No byte is lost, because the parent sends
	// nothing after gorun before it has got the greeting.
	`weft_e=$({ umask 077; LC_ALL=C head -c "$2" >"$weft_t"; } 2>&1)`,
	`[ "$({ wc -c <"$weft_t"; } 2>/dev/null)" -eq "$2" ] 2>/dev/null || weft_fail "$weft_t: ${weft_e:-the copy broke off}"`,
	`chmod 700 "$weft_t"`,
	`weft_e=$(weft_hash "$weft_t" 2>&1)`,
	`case $weft_e in "$1") ;; *"ermission denied"*) weft_fail "$weft_e: is $weft_d on a file system that is mounted noexec?";; *) weft_fail "$weft_t does not run: $weft_e";; esac`,
	`weft_e=$(LC_ALL=C mv -f "$weft_t" "$weft_p" 2>&1) || weft_fail "$weft_e"`,
	`trap - 0 1 2 13 15`,
	`exec "$weft_p" -agent`,
}, "; ")

// command returns the command line for the user's login shell on the host. word is the script's $4,
// agent its $5.
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

// quote quotes s as one word for sh, csh and fish.
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

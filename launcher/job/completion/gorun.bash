# Completion of gorun in bash. In ~/.bashrc: source <(gorun -completion bash)

_gorun() {
	# COMP_WORDS would split words at = and :, as readline does.
	local words answer line before
	read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
	[[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
	mapfile -t answer < <("${words[0]}" -complete "${words[@]:1}" 2>/dev/null)
	case ${answer[0]} in
	files) compopt -o default ;;
	dirs) compopt -o dirnames ;;
	esac
	# readline replaces what follows the last = or : of the word.
	before=${words[-1]}
	before=${before%"${before##*[=:]}"}
	COMPREPLY=()
	for line in "${answer[@]:1}"; do
		line=${line%%$'\t'*}
		[[ $line == *= ]] && compopt -o nospace
		COMPREPLY+=("${line#"$before"}")
	done
}

complete -F _gorun gorun

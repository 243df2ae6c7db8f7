#compdef gorun
# Completion of gorun in zsh. In ~/.zshrc, after compinit: source <(gorun -completion zsh)

_gorun() {
	local line
	local -a answer open closed
	answer=("${(@f)$("${(Q)words[1]}" -complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
	for line in "${(@)answer[2,-1]}"; do
		[[ -n $line ]] || continue
		if [[ ${line%%$'\t'*} == *= ]]; then
			open+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
		else
			closed+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
		fi
	done
	(( $#closed )) && _describe gorun closed
	(( $#open )) && _describe gorun open -S ''
	# Of a flag with a value after =, complete the value.
	case ${answer[1]} in
	files) compset -P '-*='; _files ;;
	dirs) compset -P '-*='; _files -/ ;;
	esac
}

if [[ ${funcstack[1]} == _gorun ]]; then
	_gorun "$@" # this file is autoloaded
else
	compdef _gorun gorun
fi

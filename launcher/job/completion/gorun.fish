# Completion of gorun in fish. In ~/.config/fish/config.fish: gorun -completion fish | source

function __gorun_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l gorun $words[1]
    set -e words[1]
    set -l answer ($gorun -complete $words "$word" 2>/dev/null)
    # Of a flag with a value after =, complete the value.
    set -l flag (string match -r '^-[^=]*=' -- $word; or echo)
    set -l value (string replace -- "$flag" '' $word)
    switch $answer[1]
        case files
            __fish_complete_path $value | string replace -r '^' -- "$flag"
        case dirs
            __fish_complete_directories $value '' | string replace -r '^' -- "$flag"
    end
    set -e answer[1]
    printf '%s\n' $answer
end

complete -c gorun -f -a '(__gorun_complete)'

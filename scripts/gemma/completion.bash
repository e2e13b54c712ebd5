# Add to ~/.bashrc: eval "$(gemma completion bash)"
_gemma() {
    local IFS=$'\n'
    COMPREPLY=($(gemma __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _gemma gemma

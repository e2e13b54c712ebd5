# Add to ~/.zshrc, after compinit: eval "$(gemma completion zsh)"
_gemma() {
    local -a found
    found=("${(@f)$(gemma __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found || _files
}
compdef _gemma gemma

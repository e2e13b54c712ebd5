# Write to ~/.config/fish/completions/gemma.fish
complete -c gemma -a '(gemma __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'

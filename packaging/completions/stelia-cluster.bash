# Completion of stelia-cluster for bash; the program knows its commands, options and instances itself.
eval "$(stelia-cluster completions bash)"

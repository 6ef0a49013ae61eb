# Completion of stelia-cluster for bash; the program knows its commands and options itself.
eval "$(stelia-cluster completions bash)"

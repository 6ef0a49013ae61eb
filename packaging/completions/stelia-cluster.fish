# Completion of stelia-cluster for fish; the program knows its commands, options and instances itself.
stelia-cluster completions fish | source

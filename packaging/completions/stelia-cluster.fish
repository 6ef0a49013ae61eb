# Completion of stelia-cluster for fish; the program knows its commands and options itself.
stelia-cluster completions fish | source

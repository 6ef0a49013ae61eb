# Completion of steliactl for fish; the program knows its commands, options and instances itself.
steliactl completions fish | source

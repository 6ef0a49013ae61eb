# Completion of steliactl for fish; the program knows its commands, options and instances itself.
COMPLETE=fish steliactl | source

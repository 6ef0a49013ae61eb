# Completion of steliactl for bash; the program knows its commands, options and instances itself.
eval "$(COMPLETE=bash steliactl)"

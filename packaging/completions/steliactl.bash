# Completion of steliactl for bash; the program knows its commands, options and VMs itself.
eval "$(COMPLETE=bash steliactl)"

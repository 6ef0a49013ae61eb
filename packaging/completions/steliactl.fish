# Completion of steliactl for fish; the program knows its commands, options and VMs itself.
COMPLETE=fish steliactl | source

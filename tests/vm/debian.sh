# Debian's packages for the scripts that build root file systems: sourced by node, and by ../api/server. They define die and say.

# apt-get only when something is missing, so that a prepared machine needs no network.
need() {
  local p missing=()
  for p; do dpkg-query -W -f '${Status}' "$p" 2> /dev/null | grep -q 'ok installed' || missing+=("$p"); done
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" = 0 ] || die "missing packages, and only root can install them: ${missing[*]}"
  say "installing ${missing[*]}"
  local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  { "${quiet[@]}" update && "${quiet[@]}" install -y --no-install-recommends "${missing[@]}"; } > /dev/null ||
    die "apt-get could not install ${missing[*]}"
}

# Debian's mirror as this host uses it: what apt itself knows, else what its source files say.
mirror() {
  local uri
  uri=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2> /dev/null |
    sed -n 's/^Debian|Debian|//p' | head -n 1)
  if [ -z "$uri" ]; then
    uri=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null |
      grep -v '^#' | grep -oE '[a-z+]+://[^ ]+/debian/?( |$)' | head -n 1)
  fi
  [ -n "$uri" ] || die "no Debian mirror in this host's apt sources"
  echo "${uri% }"
}

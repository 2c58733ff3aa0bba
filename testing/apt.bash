# For scripts that need packages of Debian, by name: they install them, or download those of other releases and for
# other processors, for which nothing is installed, and nothing of the machine's own apt changes.

# retry COMMAND tries a command that needs the network three times.
retry() {
	local try
	for try in 1 2 3; do
		"$@" && return
		[ "$try" = 3 ] || { echo "failed, trying again in 10 s: $*" >&2; sleep 10; }
	done
	return 1
}

# install_packages PACKAGE... installs packages of this machine's release. It waits for others who do, and mends what
# one who was stopped has left.
install_packages() {
	echo "installing $*" >&2
	retry try_to_install "$@"
}

try_to_install() {
	local -x DEBIAN_FRONTEND=noninteractive
	apt-get -o Acquire::Retries=3 update -qq &&
		apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "$@" >/dev/null ||
		{ dpkg --configure -a; return 1; }
}

# debian_mirror [FOLDER] prints the mirror of Debian in the machine's own sources, those in /etc/apt.
debian_mirror() {
	local etc=${1:-/etc/apt} mirrors
	# Often one of these files is missing.
	mirrors=$( (cat "$etc"/sources.list "$etc"/sources.list.d/*.{list,sources} 2>/dev/null || true) | words |
		while read -r word; do
			case $word in
			# A file with a URL on each line, as in Debian's cloud images.
			mirror+file:*) cat "/${word#mirror+file:}" | words || true ;;
			*) echo "$word" ;;
			esac
		done | grep -x '.*://.*/debian/\?') || { echo "no mirror of Debian in apt's sources" >&2; return 1; }
	echo "${mirrors%%$'\n'*}"
}

# words prints the words of its input that are not in comments, one a line.
words() { sed 's/#.*//' | tr -s '[:space:]' '\n'; }

# apt_of RELEASE ARCH FOLDER sets apt to the options for apt's programs that make them know this release alone, for a
# processor, with the mirror of the machine's own sources. What they keep is in the folder; run apt-get update first.
apt_of() {
	local mirror
	mirror=$(debian_mirror) || return 1
	mkdir -p "$3"/{lists,cache/archives}/partial
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$3/sources.list"
	: >"$3/status"
	apt=(-o Acquire::Retries=3 -o APT::Sandbox::User=root -o Acquire::Languages=none
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
		-o APT::Architecture="$2" -o APT::Architectures="$2"
		-o Dir::Etc::sourcelist="$3/sources.list" -o Dir::Etc::sourceparts=-
		-o Dir::State="$3" -o Dir::State::status="$3/status" -o Dir::Cache="$3/cache")
}

# packages_of PACKAGE... prints packages and the libraries that they need. The other ones that these depend on have
# programs.
packages_of() {
	apt-cache "${apt[@]}" depends --recurse --important "$@" | grep -xE "$(printf '%s|' "$@")z?lib[a-z0-9.-]+" | sort -u
}

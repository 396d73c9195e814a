# For scripts that need programs of Debian's, without being root or changing the system; to be sourced, with a `say`.

debian_apt() { # a folder of our own for its lists, its cache and its lock; then what apt-get is to do
    local home=$PWD/$1
    shift
    apt-get -qq -o "Dir::State::lists=$home/lists" -o "Dir::Cache=$home/cache" \
        -o Debug::NoLocking=true -o APT::Sandbox::User= -o Dpkg::Use-Pty=0 "$@" >&2
}

debian_unpack() { # a folder, which is emptied; then packages: they and all that they need are unpacked into its root
    local home=$1 root=$1/root tool file
    shift
    for tool in apt-get dpkg-deb; do
        command -v "$tool" >/dev/null || { say "There is no $tool to fetch packages with." && return 1; }
    done
    rm -rf "$home"
    mkdir -p "$home"/lists/partial "$home"/cache/archives/partial "$root"
    debian_apt "$home" update || { say "Debian's package lists could not be fetched." && return 1; }
    # An empty status file makes it fetch whatever the programs need, also what the system has already.
    : >"$home/status"
    debian_apt "$home" -o "Dir::State::status=$PWD/$home/status" install --download-only --no-install-recommends -y "$@" ||
        { say "Debian's packages could not be fetched: $*." && return 1; }
    for file in "$home"/cache/archives/*.deb; do
        case ${file##*/} in
            libc6_* | libc-bin_* | perl* | systemd_* | dpkg_*) ;; # the system's own fit its loader
            *) dpkg-deb -x "$file" "$root" || return 1 ;;
        esac
    done
    rm -rf "$home/cache" "$home/lists" "$home/status" "$root"/usr/share/{doc,locale,man,info,lintian,bug}
}

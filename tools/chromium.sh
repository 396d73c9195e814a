#!/usr/bin/env bash
# Finds or fetches a Chromium for the browser tests and the pictures of the docs:  tools/chromium.sh
#
# Prints the path of a file that says what is needed to run it, in lines of NAME=value; paths that do not start with
# a slash belong to the checkout:
#   RUNCUE_CHROMIUM   the program
#   LIBRARIES         folders of libraries that it and Playwright's driver need, or nothing
#   FONTS             its font configuration, or nothing
#
# In order: $RUNCUE_CHROMIUM, one on the PATH, one that was fetched before, and Debian's packages, which are unpacked
# into .cache/chromium. That needs apt-get and dpkg-deb, but neither root nor any change of the system.
set -euo pipefail
cd "$(dirname "$0")/.."

home=.cache/chromium
root=$home/root
packages=(chromium-headless-shell libatomic1 fonts-dejavu-core fonts-inter fonts-jetbrains-mono)

say() { echo "chromium: $*" >&2; }
# shellcheck source=tools/debian.sh
. tools/debian.sh

give_up() {
    say "$*"
    say "Name one in RUNCUE_CHROMIUM (playwright install chromium fetches one on most systems)."
    exit 1
}

finish() { # program, libraries, fonts
    mkdir -p "$home"
    printf 'RUNCUE_CHROMIUM=%s\nLIBRARIES=%s\nFONTS=%s\n' "$1" "$2" "$3" >"$home/env"
    touch "$home/.ready"
    echo "$home/env"
    exit 0
}

# Playwright's driver needs it, and a small Debian has none.
has_libatomic() { { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -q 'libatomic\.so\.1' || [ "$(uname)" != Linux ]; }

fetched() { find "$root/usr/lib/chromium" -type f -name '*headless*shell' -perm -u+x 2>/dev/null | head -n 1; }

libraries() { # every folder of the unpacked packages that holds shared libraries
    find "$root" -name '*.so*' \( -type f -o -type l \) -printf '%h\n' | grep -v /gconv | sort -u | paste -sd :
}

fetch() {
    say "fetching Debian's Chromium into $home (about 100 MB, once)"
    debian_unpack "$home" "${packages[@]}" || give_up "There is no Chromium, and Debian's could not be fetched."
    rm -rf "$root"/usr/lib/*/{dri,libLLVM*} # for graphics cards only
    cat >"$home/fonts.conf" <<'END'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir prefix="relative">root/usr/share/fonts</dir>
  <alias binding="same"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="same"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="same"><family>monospace</family><prefer><family>JetBrains Mono</family></prefer></alias>
</fontconfig>
END
    [ -n "$(fetched)" ] || give_up "Debian's packages hold no program of the expected name."
}

if [ -n "${RUNCUE_CHROMIUM:-}" ]; then
    [ -x "$RUNCUE_CHROMIUM" ] || give_up "RUNCUE_CHROMIUM is '$RUNCUE_CHROMIUM', which is no program."
    finish "$RUNCUE_CHROMIUM" "" ""
fi
if has_libatomic; then
    for name in chromium chromium-headless-shell chromium-browser google-chrome; do
        program=$(command -v "$name") && finish "$program" "" ""
    done
fi
[ -n "$(fetched)" ] && [ -e "$home/fonts.conf" ] || fetch
finish "$(fetched)" "$(libraries)" "$home/fonts.conf"

#!/bin/bash
# Tries a tarball of nlac in the userland of an older Linux: makes a root directory with debootstrap, and runs
# scripts/try-tarball.sh there (chroot) with a Node from an npm package. The kernel is this machine's. Debian only.
# usage: scripts/try-older.sh TARBALL bullseye|focal x64|arm64 [RECIPE SETTING…]   (arm64 runs under qemu)
set -euo pipefail
scripts=$(realpath "$(dirname "$0")")
tarball=$(realpath "$1")
suite=$2
arch=$3
settings=("${@:4}")
cache="${XDG_CACHE_HOME:-$HOME/.cache}/nlac"
root="$cache/roots/$suite-$arch"
case $arch in x64) debian=amd64 ;; arm64) debian=arm64 ;; *) echo "unknown processor $arch" >&2 && exit 2 ;; esac
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ "$suite" != focal ] || keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
[ -e "$keys" ] || { echo "$keys is missing: install Debian 13's package ubuntu-keyring" >&2 && exit 2; }
needed=(debootstrap)
[ "$arch" = x64 ] || needed+=(qemu-user-static)
dpkg -s "${needed[@]}" > /dev/null 2>&1 || { apt-get update && apt-get install -y --no-install-recommends "${needed[@]}"; }

# The packages are only unpacked; nothing here needs them configured.
if [ ! -e "$root/complete" ]; then
  rm -rf "$root" && mkdir -p "$root"
  debootstrap --foreign --variant=minbase --arch "$debian" --include=libstdc++6 --keyring "$keys" "$suite" "$root"
  for package in "$root"/var/cache/apt/archives/*.deb; do
    # -k as debootstrap itself, because directories may be symbolic links; it makes tar complain.
    dpkg-deb --fsys-tarfile "$package" | tar xk -C "$root" 2> /dev/null || true
  done
  # Within a container, debootstrap makes symbolic links of these.
  for place in dev proc sys run; do [ ! -L "$root/$place" ] || rm "$root/$place"; mkdir -p "$root/$place"; done
  echo 'root:x:0:0:root:/root:/bin/bash' > "$root/etc/passwd"
  echo 'root:x:0:' > "$root/etc/group"
  touch "$root/complete"
fi
node="node-linux-$arch"
[ -e "$root/opt/node_modules/$node/bin/node" ] ||
  npm install --prefix "$root/opt" --no-save --no-audit --no-fund --force --ignore-scripts "$node@20"
# npm itself is JavaScript.
[ -e "$root/opt/npm" ] || cp -rL "$(npm root --global)/npm" "$root/opt/npm"
mkdir -p "$root/usr/local/bin"
ln -sf "/opt/node_modules/$node/bin/node" "$root/usr/local/bin/node"
ln -sf /opt/npm/bin/npm-cli.js "$root/usr/local/bin/npm"
ln -sf /opt/npm/bin/npx-cli.js "$root/usr/local/bin/npx"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
# A company's own certificates.
cp -L "${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/certificates.crt"
cp "$tarball" "$root/nlac.tgz"
cp "$scripts/try-tarball.sh" "$root/"

# The kernel starts qemu for ARM programs, but only inside this namespace (Linux 6.7 or later).
ARCH=$arch ROOT=$root unshare --user --map-root-user --mount bash -ec '
  if [ "$ARCH" = arm64 ]; then
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    cat /usr/lib/binfmt.d/qemu-aarch64.conf > /proc/sys/fs/binfmt_misc/register
  fi
  for place in dev proc sys; do mount --rbind "/$place" "$ROOT/$place"; done
  mount -t tmpfs none "$ROOT/run"
  exec chroot "$ROOT" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin NODE_EXTRA_CA_CERTS=/etc/certificates.crt \
    bash -c "cat /etc/os-release | head -1; ldd --version | head -1; exec bash /try-tarball.sh /nlac.tgz npm \"\$@\"" older "$@"
' older "${settings[@]}"

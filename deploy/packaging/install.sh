#!/bin/sh
# Installs what lies beside this file, or removes it again.
#   ./install.sh [--user] [--prefix DIR] [--uninstall]
# As root into /usr/local, with the machine's scheduler as a systemd service; --user: into ~/.local, without a service, since `nvsharectl run`
# starts a scheduler of your own. Running programs keep the files that they started with. What was installed is noted in
# DIR/share/nvshare/installed-files, the folders that were made for it in made-folders; --uninstall removes exactly that, folders where they
# are empty, and of --user what a scheduler of your own has left behind.
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local user=no uninstall=no
die() { echo "install.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
  case "$1" in
    --user) user=yes prefix=${HOME:?}/.local ;;
    --prefix) [ $# -ge 2 ] || die "--prefix needs a folder after it"; prefix=$2; shift ;;
    --uninstall) uninstall=yes ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "'$1' is unknown; accepted: --user, --prefix DIR, --uninstall" ;;
  esac
  shift
done
case "$prefix" in /*) ;; *) die "--prefix '$prefix' is not an absolute path" ;; esac
list=$prefix/share/nvshare/installed-files
made=$prefix/share/nvshare/made-folders
units=${NVSHARE_UNIT_DIR:-/etc/systemd/system}
service=no
if [ "$user" = no ] && { [ -n "${NVSHARE_UNIT_DIR:-}" ] || { [ "$(id -u)" -eq 0 ] && [ -d /run/systemd/system ]; }; }; then service=yes; fi
control() { if [ -z "${NVSHARE_UNIT_DIR:-}" ]; then systemctl "$@" || true; fi; }

# With the folders above it; those that were not there are noted, the upper ones first.
make_folder() {
  [ ! -d "$1" ] || return 0
  make_folder "$(dirname "$1")" && mkdir "$1" 2> /dev/null && new_folders="$new_folders$1
"
}
new_folders=

# Of a scheduler that `nvsharectl run` started: its log, and what it knew.
remove_own_scheduler() {
  folder=${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/nvshare}
  folder=${folder:-/tmp/nvshare-$(id -u)}
  [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || return 0
  if NVSHARE_RUNTIME_DIR=$folder "$prefix/bin/nvsharectl" status > /dev/null 2>&1; then
    echo "a scheduler still serves $folder: it ends a minute after its last program, and the folder stays"
  else
    rm -rf "$folder"
  fi
}

if [ "$uninstall" = yes ]; then
  [ -f "$list" ] || die "nothing was installed below $prefix (there is no $list)"
  if [ -f "$units/nvshare-scheduler.service" ] && grep -qF "ExecStart=$prefix/" "$units/nvshare-scheduler.service"; then
    control disable --now nvshare-scheduler
    rm -f "$units/nvshare-scheduler.service"
    control daemon-reload
  fi
  if [ "$user" = yes ]; then remove_own_scheduler; fi
  files=$(cat "$list")
  # The deepest first. A release that did not note them made all of these files'.
  if [ -f "$made" ]; then
    folders=$(sort -ur "$made")
  else
    folders=$(sed 's|/[^/]*$||' "$list" | sort -u | while IFS= read -r folder; do
      while [ -n "$folder" ]; do echo "$prefix/$folder"; case "$folder" in */*) folder=${folder%/*} ;; *) folder="" ;; esac; done
    done | sort -ur)
  fi
  echo "$files" | while IFS= read -r file; do rm -f "$prefix/$file"; done
  echo "$folders" | while IFS= read -r folder; do rmdir "$folder" 2> /dev/null || true; done  # those that are empty now
  echo "removed nvshare from $prefix"
  exit 0
fi

[ -x "$here/bin/nvsharectl" ] || die "there is no bin/nvsharectl beside this file: run it in the unpacked tarball"
make_folder "$prefix/share/nvshare" || die "cannot write $prefix; run it as root, or with --user"
new=$list.new
(cd "$here" && find bin lib share -type f | sort) > "$new"
printf '%s\n' share/nvshare/installed-files share/nvshare/made-folders >> "$new"
while IFS= read -r file; do
  case "$file" in share/nvshare/installed-files | share/nvshare/made-folders) continue ;; esac
  make_folder "$prefix/$(dirname "$file")"
  # In one step, never in place: programs have the old one open. It belongs to who installs, and nobody else may write it: what root runs as
  # a service must not be the file of whoever unpacked the tarball.
  rm -f "$prefix/$file.nvshare-new"
  cp "$here/$file" "$prefix/$file.nvshare-new"
  if [ -x "$here/$file" ]; then mode=755; else mode=644; fi
  chmod "$mode" "$prefix/$file.nvshare-new"
  touch -r "$here/$file" "$prefix/$file.nvshare-new"
  mv -f "$prefix/$file.nvshare-new" "$prefix/$file"
done < "$new"
# What an earlier release had and this one has not.
if [ -f "$list" ]; then grep -vxFf "$new" "$list" | while IFS= read -r file; do rm -f "$prefix/$file"; done || true; fi
# Not beside an earlier release that noted none.
if [ -f "$made" ] || [ ! -f "$list" ]; then printf %s "$new_folders" >> "$made"; fi
mv -f "$new" "$list"
if [ "$service" = yes ]; then
  sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$prefix/share/nvshare/systemd/nvshare-scheduler.service" > "$units/nvshare-scheduler.service"
  control daemon-reload
  control enable nvshare-scheduler
  control restart nvshare-scheduler
fi
echo "installed nvshare below $prefix; try: $prefix/bin/nvsharectl doctor"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH" ;; esac

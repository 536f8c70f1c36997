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
while [ "$prefix" != "${prefix%/}" ]; do prefix=${prefix%/}; done  # so that each spelling finds what another one installed
if [ "$uninstall" = no ]; then
  case "$prefix" in *[\ :]*) die "programs could not load the library from below '$prefix': for the loader its name ends at a blank or ':'; take another folder: --user --prefix DIR" ;; esac
fi
instead="run it as root, or with --user"
if [ "$user" = yes ] || [ "$(id -u)" -eq 0 ]; then instead="another folder: --prefix DIR"; fi
list=$prefix/share/nvshare/installed-files
made=$prefix/share/nvshare/made-folders
units=${NVSHARE_UNIT_DIR:-/etc/systemd/system}
service=no
if [ "$user" = no ] && { [ -n "${NVSHARE_UNIT_DIR:-}" ] || { [ "$(id -u)" -eq 0 ] && [ -d /run/systemd/system ]; }; }; then service=yes; fi
control() { if [ -z "${NVSHARE_UNIT_DIR:-}" ]; then systemctl "$@" || true; fi; }

# With the folders above it. Those that were not there are noted, the upper ones first: in new_folders until there is a place for it.
make_folder() {
  [ ! -d "$1" ] || return 0
  make_folder "$(dirname "$1")"
  why=$(mkdir "$1" 2>&1) || die "cannot make the folder $1 (${why##*: }); $instead"
  case "$notes" in
    yes) echo "$1" >> "$made" ;;
    later) new_folders="$1
$new_folders" ;;
  esac
}
notes=later new_folders=

# Also where it fails: then what is noted can be removed by --uninstall, and what is noted nowhere goes now.
leave_nothing_unnoted() {
  rm -f "$new" "$list.both" ${part:+"$part"}
  [ ! -f "$list" ] || return 0
  rm -f "$made"
  echo "$new_folders" | while IFS= read -r folder; do rmdir "$folder" 2> /dev/null || true; done
}

# Of a scheduler that `nvsharectl run` started: what it and nvsharectl write there, by name, while nobody starts or runs one. Looked for where
# nvsharectl does.
remove_own_scheduler() {
  case "${XDG_RUNTIME_DIR:-}" in /*) folder=$XDG_RUNTIME_DIR/nvshare ;; *) folder=/tmp/nvshare-$(id -u) ;; esac
  [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || return 0
  if ! command -v flock > /dev/null; then echo "$folder stays: there is no flock to tell whether a scheduler serves it"; return 0; fi
  for lock in start.lock scheduler.lock; do  # held until this script ends
    [ -e "$folder/$lock" ] || continue
    if [ ! -f "$folder/$lock" ] || [ ! -r "$folder/$lock" ]; then echo "$folder stays: cannot read $folder/$lock"; return 0; fi
    if [ "$lock" = start.lock ]; then number=8; exec 8< "$folder/$lock"; else number=9; exec 9< "$folder/$lock"; fi
    if ! flock -n "$number"; then
      echo "a scheduler still serves $folder: it ends a minute after its last program, and the folder stays"
      return 0
    fi
  done
  for file in admin/admin.sock client/scheduler.sock; do
    if [ ! -L "$folder/${file%/*}" ]; then rm -f "$folder/$file" || true; fi
  done
  for file in clients tenants; do set -- "$@" "$file" "$file.new" "$file.changes" "$file.changes.new"; done
  for file in "$@" socket.new scheduler.log scheduler.lock start.lock; do rm -f "$folder/$file" || true; done
  for inner in admin client jobs; do rmdir "$folder/$inner" 2> /dev/null || true; done
  rmdir "$folder" 2> /dev/null || echo "$folder stays: it is not empty without the files of a scheduler"
}

# Of the GPUs that schedulers of one's own served. What one holds stays: without it a second could serve that GPU, too. It is held while it
# goes, so that a scheduler that has just opened it sees that it is gone.
remove_own_locks() {
  command -v flock > /dev/null || return 0
  for folder in "/run/lock/nvshare-locks-$(id -u)" "/tmp/nvshare-locks-$(id -u)"; do
    [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || continue
    for lock in "$folder"/*.lock; do
      if [ -f "$lock" ] && [ ! -L "$lock" ]; then flock -n "$lock" rm -f "${lock%.lock}.owner" "$lock" || true; fi
    done
    rmdir "$folder" 2> /dev/null || echo "$folder stays: a scheduler of yours still serves a GPU, or somebody else wrote there"
  done
}

if [ "$uninstall" = yes ]; then
  [ -f "$list" ] || die "nothing was installed below $prefix (there is no $list)"
  if [ -f "$units/nvshare-scheduler.service" ] && grep -qF "ExecStart=$prefix/" "$units/nvshare-scheduler.service"; then
    control disable --now nvshare-scheduler
    rm -f "$units/nvshare-scheduler.service"
    control daemon-reload
  fi
  if [ "$user" = yes ]; then
    remove_own_scheduler
    remove_own_locks
  fi
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
new=$list.new part=
trap leave_nothing_unnoted EXIT
trap 'exit 1' HUP INT TERM
make_folder "$prefix/share/nvshare"
why=$( (: > "$new") 2>&1) || die "cannot write $new (${why##*: }); $instead"
(cd "$here" && find bin lib share -type f | sort) > "$new"
printf '%s\n' share/nvshare/installed-files share/nvshare/made-folders >> "$new"
# Not beside an earlier release that noted none.
if [ -f "$made" ] || [ ! -f "$list" ]; then notes=yes; else notes=no; fi
if [ "$notes" = yes ]; then printf %s "$new_folders" >> "$made"; fi
# Until all is there: what an earlier release has, and what is to come.
if [ -f "$list" ]; then cat "$list" "$new" | sort -u > "$list.both"; else cp "$new" "$list.both"; fi
mv -f "$list.both" "$list"
while IFS= read -r file; do
  case "$file" in share/nvshare/installed-files | share/nvshare/made-folders) continue ;; esac
  make_folder "$prefix/$(dirname "$file")"
  # In one step, never in place: programs have the old one open. It belongs to who installs, and nobody else may write it: what root runs as
  # a service must not be the file of whoever unpacked the tarball.
  part=$prefix/$file.nvshare-new
  rm -f "$part"
  cp "$here/$file" "$part"
  if [ -x "$here/$file" ]; then mode=755; else mode=644; fi
  chmod "$mode" "$part"
  touch -r "$here/$file" "$part"
  mv -f "$part" "$prefix/$file"
done < "$new"
# What an earlier release had and this one has not.
grep -vxFf "$new" "$list" | while IFS= read -r file; do rm -f "$prefix/$file"; done || true
mv -f "$new" "$list"
if [ "$service" = yes ]; then
  sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$prefix/share/nvshare/systemd/nvshare-scheduler.service" > "$units/nvshare-scheduler.service"
  control daemon-reload
  control enable nvshare-scheduler
  control restart nvshare-scheduler
fi
echo "installed nvshare below $prefix; try: $prefix/bin/nvsharectl doctor"
case "$prefix" in
  *[!A-Za-z0-9/._+@%,-]*) typed="'$(echo "$prefix" | sed "s/'/'\\\\''/g")'" ;;
  *) typed=$prefix ;;
esac
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "$prefix/bin is not in PATH: export PATH=$typed/bin:\$PATH" ;; esac

# DIRECTORY STAGE one|many: unpacks the input in STAGE, in DIRECTORY. When all of it came, each file
# of STAGE/it is moved up by a rename; directories that are there stay and are filled. STAGE goes in
# any case. A dot is written for each step: who is heard of is not taken for forgotten.
cd -- "$1" || exit 1
stage=./$2 one=$3 level=0 unpacked=

# Told once; told again, it goes on. tar is known by `$!`, which is set before a signal is heard.
clean() {
  trap '' HUP INT PIPE TERM
  [ -n "$unpacked" ] || [ -z "$!" ] || kill -KILL "$!" 2>/dev/null
  rm -rf "$stage" 2>/dev/null || { chmod -R u+rwx "$stage"; rm -rf "$stage"; }
}

fill() (
  level=$((level + 1))
  for it in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -e "$it" ] || [ -L "$it" ]; then
      printf .
      place "$it" "$2/${it##*/}" || exit 1
    fi
  done
)

place() {
  if [ -L "$1" ] || [ ! -d "$1" ]; then
    # Into a directory it would be moved, and so it would behind a link to one.
    if [ -d "$2" ]; then
      if [ ! -L "$2" ]; then echo "$2: a directory is in the way" >&2; return 1; fi
      rm -f "$2" || return 1
    fi
    if [ "$one" = one ]; then
      sync "$1" 2>/dev/null
    elif [ -f "$2" ] && [ ! -d "$stage/synced" ]; then
      # All at once, when the first of them replaces another.
      mkdir "$stage/synced" && sync -f "$stage" 2>/dev/null
    fi
    mv -f "$1" "$2"
  elif [ -d "$2" ] && [ ! -L "$2" ]; then
    mode=$(stat -c %a "$1") && touch -r "$1" "$stage/time-$level" && chmod u+rwx "$1" &&
      fill "$1" "$2" && chmod "$mode" "$2" && touch -r "$stage/time-$level" "$2"
  else
    rm -f "$2" || return 1
    if [ -w "$1" ]; then mv "$1" "$2"; return; fi
    # Without the right to write to it, it can't get another directory above it.
    mode=$(stat -c %a "$1") && chmod u+w "$1" && mv "$1" "$2" && chmod "$mode" "$2"
  fi
}

trap 'exit 143' HUP INT PIPE TERM
trap clean EXIT
mkdir -m 700 "$stage" || exit 1
exec 3<&0
(cd "$stage" && exec tar -xpof - <&3) &
wait "$!" || exit
unpacked=yes
if [ ! -d "$stage/whole" ]; then echo "the copy broke off" >&2; exit 1; fi
fill "$stage/it" .

# Keeps the daemons of one bed. Started in a process group of its own, with a pipe from the owner
# as standard input.
#
# Each line read is the name of a daemon: NAME.sh in the bed's directory starts it, anew if it has ended. When the pipe
# closes, because the owner asked for it or because it died in whatever way, the daemons are
# killed, the last one started first, and the directory is removed.
dir=$1
cd "$dir" || exit 1

# A signal ends the wait for lines, and so leads to the same orderly end.
trap : HUP INT TERM

started=
while read -r name; do
  sh "./$name.sh" </dev/null >"$name.log" 2>&1 &
  echo "$!" >"$name.pid.new" && mv "$name.pid.new" "$name.pid"
  started="$name $started"
done

# Nobody may be left to read what these would say.
exec >/dev/null 2>&1

# What they could still put in order goes with the directory: an API server takes a second for it.
for name in $started; do
  kill -KILL "$(cat "$name.pid")"
done
wait

cd / && rm -rf -- "$dir"

# Runs the daemons of one bed. Started in a process group of its own, with a pipe from the owner
# as standard input.
#
# Each line read is the name of a daemon: NAME.sh in the bed's directory starts it, again if it has
# ended. When the pipe closes, because the owner closed it or died in whatever way, the daemons are
# killed, the last one started first, and the directory is removed.
dir=$1
cd "$dir" || exit 1

# A signal ends the wait for lines, and so has the same orderly end.
trap : HUP INT TERM

started=
while read -r name; do
  sh "./$name.sh" </dev/null >"$name.log" 2>&1 &
  echo "$!" >"$name.pid.new" && mv "$name.pid.new" "$name.pid"
  started="$name $started"
done

# There may be no reader for further output.
exec >/dev/null 2>&1

# A graceful end is not needed, as the directory is removed: it takes an API server a second.
for name in $started; do
  kill -KILL "$(cat "$name.pid")"
done
wait

cd / && rm -rf -- "$dir"

#!/bin/bash
# kubectl, but nothing is changed, unless it is for real, and what needs a pod needs none.
[ -z "${FOR_REAL-}" ] || exec "$REAL_KUBECTL" "$@"
verb= value=
for word in "$@"; do
    if [ -n "$value" ]; then
        value=
        continue
    fi
    case $word in
    -n | --namespace) value=1 ;;
    -*) ;;
    *)
        verb=$word
        break
        ;;
    esac
done

# Runs it, and takes the one failure for success that says no more than that there is no pod.
without_pods() {
    said=$("$REAL_KUBECTL" "$@" 2>&1) && return 0
    case $said in
    *"timed out waiting for the condition"* | *"does not have a host assigned"* | *"no endpoints available"*) return 0 ;;
    esac
    echo "$said" >&2
    return 1
}

case "$verb $*" in
# A token changes nothing.
"create create token "*) exec "$REAL_KUBECTL" "$@" ;;
# The namespaces and Secrets that are created are there.
create*) exec "$REAL_KUBECTL" "$@" --dry-run=client ;;
# Without it, the next command would have another meaning.
delete*" clusterrolebinding "*) exec "$REAL_KUBECTL" "$@" ;;
annotate* | apply* | delete* | label* | patch* | replace* | scale*)
    exec "$REAL_KUBECTL" "$@" --dry-run=server
    ;;
exec*)
    for word in "$@"; do
        shift
        [ "$word" != exec ] || set -- "$@" exec --pod-running-timeout=1s
        [ "$word" = exec ] || set -- "$@" "$word"
    done
    without_pods "$@"
    ;;
get*/proxy/*) without_pods "$@" ;;
*) exec "$REAL_KUBECTL" "$@" ;;
esac

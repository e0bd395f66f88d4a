#!/bin/bash
# The operator. `controller` has no end: another test reads its options. The server of a cloud config is
# the API server that there is, and the Rancher is the bed's, with a key of its.
case "$*" in
controller*) exit 0 ;;
# The plan alone: what it would do is another test's.
takeover*--apply*)
    for word in "$@"; do
        shift
        [ "$word" = --apply ] || set -- "$@" "$word"
    done
    ;;
rancher-secret*)
    more=()
    case "$*" in
    *--cloud-credential*) more=(--cloud-credential "$RANCHER_CREDENTIAL" --server "$SERVER" --vm-namespace guests) ;;
    esac
    exec "$REAL_OPERATOR" rancher-secret --url "$RANCHER" --ca-checksum "$RANCHER_CHECKSUM" "${more[@]}" <"$RANCHER_API_KEY"
    ;;
cloud-config*--list* | cloud-config*--server*) ;;
cloud-config*--rotate*) set -- "$@" --server "$SERVER" ;;
cloud-config*--revoke*) ;;
cloud-config*) set -- "$@" --server "$SERVER" ;;
esac
exec "$REAL_OPERATOR" "$@"

#!/bin/bash
# helm, but nothing is changed, unless it is for real. The release is there: what would install it is rendered.
[ -z "${FOR_REAL-}" ] || exec "$REAL_HELM" "$@"
verb=$1
shift
case $verb in
install) exec "$REAL_HELM" template "$@" --kube-version v1.36.3 ;;
upgrade) exec "$REAL_HELM" upgrade "$@" --dry-run=server ;;
uninstall) exec "$REAL_HELM" uninstall "$@" --dry-run ;;
*) exec "$REAL_HELM" "$verb" "$@" ;;
esac

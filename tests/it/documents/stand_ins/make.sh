#!/bin/bash
# make, which says what it would do.
exec /usr/bin/env -u MAKEFLAGS PATH="${PATH#*:}" make --dry-run --directory "$REPOSITORY" "$@"

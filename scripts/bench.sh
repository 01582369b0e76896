#!/usr/bin/env bash
# The same as `cargo xtask bench`, from any directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec cargo xtask bench "$@"

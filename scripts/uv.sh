# Sets UV to a uv to use: the one on PATH, or one of the pinned version from PyPI in the cache of Shakedown.
# Sourced by shakedown-run and .ci/run, so that both need nothing but Python 3.11 and its venv module.
UV_VERSION=0.13.9
UV=$(command -v uv || true)
if [ -z "$UV" ]; then
  bootstrap="${SHAKEDOWN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/shakedown}/bootstrap-uv-$UV_VERSION"
  UV="$bootstrap/bin/uv"
  if [ ! -x "$UV" ]; then
    python=""
    for candidate in python3 python3.13 python3.12 python3.11; do  # a name on PATH may be a shim that runs nothing
      if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
      fi
    done
    if [ -z "$python" ]; then
      echo "shakedown: needs Python 3.11 or newer on PATH; install it (Debian 12: apt-get install python3 python3-venv)" >&2
      exit 4
    fi
    echo "shakedown: fetching uv $UV_VERSION (once)" >&2
    rm -rf "$bootstrap"
    "$python" -m venv "$bootstrap" || { echo "shakedown: python3-venv is missing (apt-get install python3-venv)" >&2; exit 4; }
    "$bootstrap/bin/pip" install --quiet "uv==$UV_VERSION"
  fi
fi
export UV

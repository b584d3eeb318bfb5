#!/usr/bin/env bash
# For other scripts to source: environment FOLDER PINS makes FOLDER a virtual environment with the packages from PyPI
# that the file PINS names, unless it is one already. It fails where that does; the output is in FOLDER.log.
environment() {
    local folder=$1 pins=$2
    ! cmp -s "$pins" "$folder/installed.txt" || return 0
    echo "installing what ${pins##*/} pins to $folder (a few minutes)" >&2
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    "${PYTHON:-python3}" -m venv "$folder" >"$folder.log" 2>&1 &&
        "$folder/bin/python" -m pip --no-cache-dir --disable-pip-version-check install -r "$pins" >>"$folder.log" 2>&1 &&
        cp "$pins" "$folder/installed.txt"
}

# Processes that a script starts and finds again; for scripts that source it. One is named by its id and its start time, so
# that an id that is in use again is never taken for it.
# shellcheck shell=bash

started_at() { awk '{ sub(/^.*\) /, ""); print $20 }' "/proc/$1/stat" 2>/dev/null || true; }

# note_process PID FILE: as `running_pid` finds it.
note_process() { echo "$1 $(started_at "$1")" >"$2"; }

# running_pid FILE: prints the id of the process that was noted there, if it runs.
running_pid() {
  local pid started
  read -r pid started 2>/dev/null <"$1" || return 1
  [[ -n $pid && -n $started && $(started_at "$pid") == "$started" ]] || return 1
  echo "$pid"
}

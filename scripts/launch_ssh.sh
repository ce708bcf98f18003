#!/bin/bash
# Trains on several hosts over ssh.
#
#   scripts/launch_ssh.sh [options] HOSTFILE train CONFIG.toml [...]
#
#   --port N        port of rank 0 on the first host (29500)
#   --master NAME   name or address by which the hosts reach the first one (its name in the host file)
#   --hearth PATH   the program on the hosts (build/hearth below the present folder)
#   --grace N       seconds for the other hosts to end after a failure, and again before they are cut off (15)
#   --dry-run       print the commands instead
#
# HOSTFILE has a line for each host, "node1 slots=8": 8 ranks there.  Everything after # is a comment.  The hosts
# must have the program, the config and the data at the same paths, and let ssh in without a password.
#
# One `hearth launch` runs on each host and takes care of its ranks.  It reads from its standard input the token
# that the ranks know each other by (so that no process list shows it), then names of signals; the end of the
# input, also when the connection breaks, means TERM.  Ctrl-C and TERM here are passed on; USR1 too.
# The exit code is that of the host that failed first, whose last line is printed last.
set -euo pipefail

fail() {  # fail MESSAGE: the caller's mistake
  printf 'launch_ssh: %s\n' "$1" >&2
  exit 2
}

port=29500 master='' hearth=$PWD/build/hearth grace=15 dry_run=0
while (($#)); do
  case $1 in
    --port | --master | --hearth | --grace)
      (($# > 1)) || fail "$1 needs a value."
      declare "${1#--}=$2"
      shift 2
      ;;
    --dry-run) dry_run=1; shift ;;
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"; exit 0 ;;
    -*) fail "unknown option '$1'; known are --port, --master, --hearth, --grace and --dry-run." ;;
    *) break ;;
  esac
done
(($# >= 2)) || fail "give a host file and what to run, for example: scripts/launch_ssh.sh hosts train configs/gpt2-124m.toml"
# shellcheck disable=SC2015  # both conditions or the message
[[ $port =~ ^[0-9]{1,5}$ ]] && ((10#$port >= 1 && 10#$port <= 65535)) ||
  fail "--port $port: expected a number from 1 to 65535."
[[ $grace =~ ^[0-9]{1,5}$ ]] || fail "--grace $grace: expected a number of seconds."
hostfile=$1
shift

hosts=() slots=() world=0
read_hostfile() {
  [[ -r $hostfile ]] || fail "cannot read the host file '$hostfile'."
  local line name count rest number=0 other
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    read -r name count rest <<<"${line%%#*}" || true
    [[ -n $name ]] || continue
    [[ $count =~ ^slots=([1-9][0-9]{0,3})$ && -z $rest ]] ||
      fail "$hostfile:$number: found '$line', expected a host and its number of ranks, like: node1 slots=8"
    [[ $name =~ ^[A-Za-z0-9_][A-Za-z0-9_.:@-]*$ ]] || fail "$hostfile:$number: '$name' is no host name."
    for other in "${hosts[@]}"; do
      [[ $other != "$name" ]] || fail "$hostfile:$number: $name is there twice; add its slots together."
    done
    hosts+=("$name")
    slots+=("${count#slots=}")
    world=$((world + ${count#slots=}))
  done <"$hostfile"
  ((${#hosts[@]})) || fail "$hostfile names no host."
}

# Settings of libraries that the ranks should have as we have them.
environment() {
  local name
  compgen -e | while read -r name; do
    case $name in
      HEARTH_TOKEN) ;;
      NCCL_* | CUDA_* | HEARTH_* | LD_LIBRARY_PATH) printf '%q ' "$name=${!name}" ;;
    esac
  done
}

remote_command() {  # remote_command HOST_NUMBER FIRST_RANK ARGUMENT...
  local n=$1 first=$2
  shift 2
  printf 'cd %q && exec env %s%q launch -n %d --first-rank %d --world-size %d --master %q --controlled' "$PWD" \
    "$(environment)" "$hearth" "${slots[n]}" "$first" "$world" "$master:$port"
  printf ' %q' "$@"
}

read_hostfile
[[ -n $master ]] || master=${hosts[0]#*@}
ssh=(ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4)
commands=() first=0
for n in "${!hosts[@]}"; do
  commands+=("$(remote_command "$n" "$first" "$@")")
  first=$((first + slots[n]))
done
if ((dry_run)); then
  for n in "${!hosts[@]}"; do
    printf '%s %s %q\n' "${ssh[*]}" "${hosts[n]}" "${commands[n]}"
  done
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
inputs=() jobs=()

# Non-interactive bash starts background jobs deaf to Ctrl-C, so that ssh outlives it and the ranks can save.
run_host() {  # run_host NUMBER: in the background; leaves "number code" as a line of $folder/ends
  local code=0 other
  for other in "${inputs[@]}"; do exec {other}>&-; done  # only the script's end is the end of an input
  "${ssh[@]}" "${hosts[$1]}" "${commands[$1]}" <"$folder/input.$1" 2> >(tee "$folder/errors.$1" >&2) || code=$?
  echo "$1 $code" >>"$folder/ends"
}

tell_all() {  # tell_all SIGNAL_NAME
  local input
  for input in "${inputs[@]}"; do
    { echo "$1" >&"$input"; } 2>/dev/null || true
  done
}

token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
: >"$folder/ends"
trap '' PIPE
for n in "${!hosts[@]}"; do
  mkfifo "$folder/input.$n"
  run_host "$n" &
  jobs+=($!)
  exec {input}<>"$folder/input.$n"  # for reading too: opening waits for nobody
  inputs+=("$input")
  echo "$token" >&"$input"
done
for name in INT TERM USR1; do
  # shellcheck disable=SC2064  # the name of now
  trap "tell_all $name" "$name"
done

running() { (($(wc -l <"$folder/ends") < ${#hosts[@]})); }
first_failure() { grep -m1 -v ' 0$' "$folder/ends"; }

asked=0
while running; do
  if first_failure >/dev/null && ((asked == 0)); then asked=1 since=$SECONDS; fi
  if ((asked == 1 && SECONDS - since >= grace)); then asked=2 since=$SECONDS; tell_all TERM; fi
  if ((asked == 2 && SECONDS - since >= grace)); then asked=3; pkill -P "$(IFS=,; echo "${jobs[*]}")" ssh || true; fi
  sleep 0.2 || true
done
wait || true
sleep 0.1  # the copies of the error output
if failure=$(first_failure); then
  read -r n code <<<"$failure"
  printf 'launch_ssh: %s failed first, exit code %d: %s\n' "${hosts[n]}" "$code" "$(tail -n 1 "$folder/errors.$n")" >&2
  ((code == 255)) && code=71  # ssh itself: the connection
  exit "$code"
fi

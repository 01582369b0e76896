# The life of the packages where systemd runs: installed, started, restarted, upgraded while clients load, taken back,
# removed, purged. Each function is a test; the next one goes on with what it leaves.
set -u
export PS4='+ ${FUNCNAME:-} ${LINENO}: '

download=32M

# Everything that is on the disk, and the users. What dpkg, systemd and caches write is theirs.
state() {
    find / -xdev -path /job -prune -o -path /root -prune -o -path /tmp -prune -o -path /var/lib/dpkg -prune \
        -o -path /var/log -prune -o -path /var/cache -prune -o -path /var/lib/systemd -prune \
        -o -name '*-' -path '/etc/*' -prune -o -path /etc/ld.so.cache -prune -o -printf '%p %M %u:%g\n' | sort
    grep -v '^signalbox:' /etc/passwd
    grep -v '^signalbox:' /etc/group
    find /etc/systemd /var/lib/systemd/deb-systemd-helper-* /sys/fs/bpf /run -name '*signalbox*' 2>/dev/null || true
}

main_pid() { systemctl show --property=MainPID --value signalbox.service; }

# Succeeds if a command fails: `set -e` overlooks a `!`.
fails() { if "$@"; then return 1; fi; }

# Waits until a command succeeds.
until_so() {
    local -
    set +x
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    echo "never: $*"
    return 1
}

ask() { ip netns exec client curl -sS --max-time 1800 --noproxy '*' -H 'Host: app.example.com' "$@"; }
ready() { curl -sf --max-time 20 --noproxy '*' http://127.0.0.1:8089/readyz; }

# Connections, each a new one, until told to stop: /run/failed counts those that failed.
call_without_end() {
    set +x
    rm -f /run/stop /run/calls /run/failed
    touch /run/calls /run/failed
    while [ ! -e /run/stop ]; do
        if ask -o /dev/null -f http://10.1.0.1/small 2>>/run/failed; then echo >>/run/calls; fi
        sleep 0.3
    done
}
begin_calls() {
    call_without_end &
    echo $! >/run/caller
    until_so test -s /run/calls
}
no_call_has_failed() {
    sleep 1
    touch /run/stop
    until_so fails kill -0 "$(cat /run/caller)"
    wc -l /run/calls /run/failed
    cat /run/failed
    [ ! -s /run/failed ]
}

# A download of 32 MiB through a listener, which its reader holds up behind the first MiB: however slow the machine is,
# it is under way until it may go on. Its digest goes to a file.
begin_download() {
    rm -f "/run/digest.$1" "/run/begun.$1" "/run/go.$1"
    (ask "http://10.1.0.1:$2/large" | {
        set +x
        head -c 1M
        touch "/run/begun.$1"
        until [ -e "/run/go.$1" ]; do sleep 0.2; done
        cat
    } | sha256sum >"/run/digest.$1") 2>"/run/complaint.$1" &
    until_so test -e "/run/begun.$1"
}
download_is_whole() {
    [ ! -s "/run/digest.$1" ]
    touch "/run/go.$1"
    until_so test -s "/run/digest.$1"
    cat "/run/complaint.$1"
    [ "$(cat "/run/digest.$1")" = "$(cat /run/digest)" ]
}

network() {
    for end in client host; do
        ip netns add "$end"
        ip link add "$end" type veth peer name eth0 netns "$end"
        ip -n "$end" link set lo up
        ip -n "$end" link set eth0 up
        ip link set "$end" up
    done
    ip address add 10.1.0.1/24 dev client
    ip -n client address add 10.1.0.2/24 dev eth0
    ip address add 10.2.0.1/24 dev host
    ip -n host address add 10.2.0.2/24 dev eth0
    ip -n host route add default via 10.2.0.1
    mkdir -p /root/www
    head -c "$download" /dev/urandom >/root/www/large
    sha256sum - </root/www/large >/run/digest
    echo small >/root/www/small
    touch /root/www/healthz
    printf '%s\n' 'user root; pid /run/www.pid; events {}' \
        'http { access_log off; send_timeout 1h; server { listen 80; listen 1936; root /root/www; } }' >/root/www.conf
    ip netns exec host nginx -c /root/www.conf
}

configure() {
    cat >/etc/signalbox/signalbox.yaml <<END
version: 1
admin: { listen: "127.0.0.1:8089", socket: /run/signalbox/admin.sock }
timeouts: { shutdown: 70s }
listeners:
  - { name: http, protocol: http, listen: ["10.1.0.1:80"] }
  - { name: uncut, protocol: http, listen: ["10.1.0.1:81"], datapath: { cut: off } }
clusters:
  - name: east
    health: { http: { port: 1936, path: /healthz }, interval: 10s, timeout: 5s, rise: 1 }
    hosts: [{ name: east-1, address: 10.2.0.2, http: 80 }]
routes:
  - { host: app.example.com, clusters: { east: 1 } }
END
}

t01_installed_it_is_enabled_and_waits_for_a_configuration() {
    network
    state >/run/before
    dpkg --install /job/first/*.deb
    [ "$(systemctl is-enabled signalbox)" = enabled ]
    [ "$(systemctl is-enabled signalbox-ha || true)" = disabled ]
    [ "$(systemctl show --property=ActiveState --value signalbox)" = inactive ]
    [ "$(systemctl show --property=ConditionResult --value signalbox)" = no ]
    [ "$(systemctl is-failed signalbox || true)" != failed ]
}

t02_configured_it_starts_as_its_own_user_with_the_rights_of_the_unit() {
    configure
    systemctl start signalbox
    [ "$(systemctl is-active signalbox)" = active ]
    until_so ready
    ask -f http://10.1.0.1/small
    pid=$(main_pid)
    [ "$(stat -c %U "/proc/$pid")" = signalbox ]
    grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp)' "/proc/$pid/status"
    # CAP_BPF, CAP_PERFMON, CAP_NET_RAW, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE.
    grep -E '^CapEff:\s+000000c000003400$' "/proc/$pid/status"
    grep -E '^NoNewPrivs:\s+1$' "/proc/$pid/status"
    # Nothing of what it wants is missing, under all that the unit forbids.
    curl -s --noproxy '*' http://127.0.0.1:8089/metrics >/run/metrics
    fails grep '^signalbox_feature{' /run/metrics
    grep '^signalbox_steering{mode="sk_lookup"} 1' /run/metrics
    systemd-analyze security --threshold=20 signalbox.service >/dev/null
    find /sys/fs/bpf/signalbox -user signalbox -type f | grep -q .
}

t03_a_reload_checks_the_file_first() {
    pid=$(main_pid)
    sed -i 's/name: east-1/name: east-one/' /etc/signalbox/signalbox.yaml
    systemctl reload signalbox
    until_so sh -c 'signalbox hosts | grep east-one'
    cp /etc/signalbox/signalbox.yaml /run/good.yaml
    sed -i 's/^listeners:/listners:/' /etc/signalbox/signalbox.yaml
    fails systemctl reload signalbox
    cp /run/good.yaml /etc/signalbox/signalbox.yaml
    systemctl reload signalbox
    [ "$(main_pid)" = "$pid" ]
    ask -f http://10.1.0.1/small
}

t04_a_restart_keeps_a_download_that_is_cut_and_refuses_no_connection() {
    begin_download cut 80
    begin_calls
    until_so sh -c 'signalbox flows | grep -w cut'
    pid=$(main_pid)
    systemctl restart signalbox
    [ "$(main_pid)" != "$pid" ]
    journalctl --unit signalbox | grep 'systemd keeps the listening sockets'
    no_call_has_failed
    # They are the process' alone again, and end with it.
    [ "$(systemctl show --property=NFileDescriptorStore --value signalbox)" = 0 ]
    download_is_whole cut
    ask -f http://10.1.0.1/small
}

t05_a_stop_refuses_connections() {
    systemctl stop signalbox
    code=0
    ask -f http://10.1.0.1/small || code=$?
    # curl's number for a connection that is refused: not a time-out, nor an empty answer.
    [ "$code" = 7 ]
    systemctl start signalbox
    until_so ready
}

t06_killed_it_is_started_again_and_the_download_goes_on() {
    begin_download cut 80
    until_so sh -c 'signalbox flows | grep -w cut'
    pid=$(main_pid)
    systemctl kill --kill-whom=main --signal=KILL signalbox
    until_so sh -c "[ \$(systemctl show --property=MainPID --value signalbox) != $pid ] && systemctl is-active signalbox"
    until_so ready
    download_is_whole cut
}

t07_an_upgrade_loses_neither_downloads_nor_connections() {
    begin_calls
    begin_download cut 80
    begin_download uncut 81
    until_so sh -c 'signalbox flows | grep -w cut'
    pid=$(main_pid)
    dpkg --install /job/next/*.deb
    next=$(main_pid)
    [ "$next" != "$pid" ]
    [ "$(readlink "/proc/$next/exe")" = /usr/bin/signalbox ]
    [ "$(systemctl is-active signalbox)" = active ]
    grep -q "signalbox.service" "/proc/$next/cgroup"
    no_call_has_failed
    download_is_whole uncut
    download_is_whole cut
    # The process before ends with its last flow, and the unit stays.
    until_so fails kill -0 "$pid"
    [ "$(main_pid)" = "$next" ]
    # Not started anew: only the kill before counts, if systemd still knows of it.
    [ "$(systemctl show --property=NRestarts --value signalbox)" -le 1 ]
    systemctl show --property=ActiveState,SubState,StatusText,Result signalbox
    ask -f http://10.1.0.1/small
}

t08_a_version_that_does_not_start_leaves_the_one_before() {
    pid=$(main_pid)
    cp /etc/signalbox/signalbox.yaml /run/good.yaml
    echo 'listners: []' >>/etc/signalbox/signalbox.yaml
    begin_calls
    dpkg --install /job/first/*.deb 2>/run/said
    cat /run/said
    grep 'did not come to serve' /run/said
    no_call_has_failed
    [ "$(main_pid)" = "$pid" ]
    [ "$(systemctl is-active signalbox)" = active ]
    cp /run/good.yaml /etc/signalbox/signalbox.yaml
    /usr/lib/signalbox/replace
    [ "$(main_pid)" != "$pid" ]
    ask -f http://10.1.0.1/small
}

t09_what_an_administrator_has_stopped_and_disabled_stays_so() {
    systemctl disable --now signalbox
    dpkg --install /job/next/*.deb
    [ "$(systemctl is-enabled signalbox || true)" = disabled ]
    [ "$(systemctl is-active signalbox || true)" = inactive ]
    systemctl enable --now signalbox
    until_so ready
    ask -f http://10.1.0.1/small
}

t10_virtual_addresses_come_and_go_by_the_unit_of_an_ordinary_user() {
    cat >>/etc/signalbox/signalbox.yaml <<END
ha:
  name: test
  interface: client
  groups:
    - { name: g1, vips: 10.1.0.101 }
END
    signalbox check --config /etc/signalbox/signalbox.yaml
    systemctl restart signalbox
    until_so ready
    systemctl start signalbox-ha
    has_address() { ip -o address show dev client | grep -q '10\.1\.0\.101/32'; }
    until_so has_address
    pid=$(systemctl show --property=MainPID --value signalbox-ha)
    for process in $pid $(pgrep -f keepalived); do
        [ "$(stat -c %U "/proc/$process")" = signalbox ]
        grep -E '^CapEff:\s+0000000000003000$' "/proc/$process/status"
    done
    signalbox ha status
    # An upgrade leaves the address where it is.
    dpkg --install /job/first/*.deb 2>/run/said
    cat /run/said
    grep 'signalbox-ha runs the program from before' /run/said
    [ "$(systemctl show --property=MainPID --value signalbox-ha)" = "$pid" ]
    has_address
    systemctl stop signalbox-ha
    fails has_address
    fails pgrep -f keepalived
}

t11_removed_it_has_stopped_and_nothing_is_pinned() {
    systemctl start signalbox-ha
    dpkg --remove signalbox
    [ "$(systemctl is-active signalbox || true)" != active ]
    fails pgrep -u signalbox
    find /sys/fs/bpf/signalbox
    [ -z "$(find /sys/fs/bpf/signalbox -type f 2>/dev/null)" ]
    [ -e /etc/signalbox/signalbox.yaml ]
}

t12_purged_it_has_left_nothing_but_its_user() {
    rm /etc/signalbox/signalbox.yaml
    dpkg --purge signalbox
    state >/run/after
    diff /run/before /run/after
    getent passwd signalbox
    for end in client host; do
        ip netns pids "$end" | xargs -r kill
        ip netns delete "$end"
    done
}

failed=
for test in $(declare -F | sed -n 's/^declare -f \(t[0-9].*\)/\1/p'); do
    (set -eux; "$test") >/run/test.log 2>&1
    code=$?
    if [ "$code" = 0 ]; then
        echo "test installed::$test ... ok"
    else
        tail -n 60 /run/test.log
        journalctl --no-pager --lines=40 --unit=signalbox --unit=signalbox-ha
        echo "$test ended with $code"
        echo "test installed::$test ... FAILED"
        # What comes next goes on with what was to be.
        exit 1
    fi
done

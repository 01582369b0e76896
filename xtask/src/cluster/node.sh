# The first process of a node, in namespaces of its own: prepares mounts, starts containerd, kubelet and kube-proxy, and
# waits. If one of them ends, the node does.
#
# NODE is the node's name, ADDRESS its address, PODS the network of its pods, HOME_DIR its directory, CLUSTER that of the
# cluster, PROGRAMS where Kubernetes' programs are.
set -eu
hostname "$NODE"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /sys/fs/cgroup
while IFS=: read -r _ controllers _; do
    [ -n "$controllers" ] || continue
    directory="/sys/fs/cgroup/${controllers#name=}"
    mkdir -p "$directory"
    mount -t cgroup -o "${controllers/#name=/none,name=}" cgroup "$directory"
done < /proc/self/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/netns
# Nothing of what Kubernetes keeps is seen by this machine, or kept from a cluster before.
mount -t tmpfs tmpfs /var/lib
for directory in kubelet containerd signalbox cni; do
    mkdir -p "$HOME_DIR/$directory" "/var/lib/$directory"
    mount --bind "$HOME_DIR/$directory" "/var/lib/$directory"
done
mkdir -p "$HOME_DIR/log"
mount --bind "$HOME_DIR/log" /var/log
# kubelet wants to set these for the whole machine. It finds what it asks for, and changes nothing.
mkdir -p "$HOME_DIR/sysctl"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file="$HOME_DIR/sysctl/$(echo "${setting%=*}" | tr / _)"
    echo "${setting#*=}" > "$file"
    if [ -e "/proc/sys/${setting%=*}" ]; then mount --bind "$file" "/proc/sys/${setting%=*}"; fi
done
# `mountPropagation` of pods needs it.
mount --make-rshared /

mkdir -p "$HOME_DIR/net.d"
cat > "$HOME_DIR/net.d/10-lab.conflist" <<CNI
{ "cniVersion": "0.4.0", "name": "lab", "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "$PODS" }]], "routes": [{ "dst": "0.0.0.0/0" }] } }] }
CNI
cat > "$HOME_DIR/containerd.toml" <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lab.test/pause:1"
  # A machine that may not lower the score of its own processes may not lower theirs.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$PROGRAMS/node/usr/lib/cni"
    conf_dir = "$HOME_DIR/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$PROGRAMS/node/usr/sbin/runc"
TOML
cat > "$HOME_DIR/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
authentication:
  anonymous: { enabled: false }
  webhook: { enabled: true }
  x509: { clientCAFile: $CLUSTER/pki/ca.pem }
authorization: { mode: Webhook }
tlsCertFile: $CLUSTER/pki/$NODE.pem
tlsPrivateKeyFile: $CLUSTER/pki/$NODE.key
evictionHard: { memory.available: 100Mi, nodefs.available: 1% }
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 3s
YAML

export PATH="$PROGRAMS/node/usr/bin:$PROGRAMS/node/usr/sbin:$PATH"
containerd --config "$HOME_DIR/containerd.toml" > "$HOME_DIR/containerd.log" 2>&1 &
until ctr version > /dev/null 2>&1; do sleep 0.2; done
for image in "$CLUSTER"/images/*.tar; do
    name="$(cat "${image%.tar}.name")"
    ctr -n k8s.io images import --base-name "${name%:*}" "$image"
    # The tag in the archive is that of a version between releases.
    imported="$(ctr -n k8s.io images list -q | grep "^${name%:*}:" | head -n 1)"
    [ "$imported" = "$name" ] || ctr -n k8s.io images tag "$imported" "$name"
done
"$PROGRAMS/kubelet" --config="$HOME_DIR/kubelet.yaml" --kubeconfig="$CLUSTER/pki/$NODE.kubeconfig" --hostname-override="$NODE" \
    --node-ip="$ADDRESS" --container-runtime=remote \
    --container-runtime-endpoint=unix:///run/containerd/containerd.sock > "$HOME_DIR/kubelet.log" 2>&1 &
# The limit of conntrack is that of the whole machine.
"$PROGRAMS/kube-proxy" --kubeconfig="$CLUSTER/pki/proxy.kubeconfig" --hostname-override="$NODE" --proxy-mode=iptables \
    --cluster-cidr=10.88.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
    --conntrack-tcp-timeout-close-wait=0 > "$HOME_DIR/kube-proxy.log" 2>&1 &
wait -n

package preflight

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
)

// pods are the pods of DaemonSets as installers, providers and people write them, and what their arguments mean: the
// mode and the cluster CIDRs, or an error.
func pods() map[string]struct{ pod, mode, cidrs, err string } {
	const node = `env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]`
	const mounts = `volumeMounts: [{name: kube-proxy, mountPath: /var/lib/kube-proxy}]`
	const volume = `volumes: [{name: kube-proxy, configMap: {name: kube-proxy}}]`
	return map[string]struct{ pod, mode, cidrs, err string }{
		"kubeadm": {`
containers:
- name: kube-proxy
  command: [/usr/local/bin/kube-proxy, --config=/var/lib/kube-proxy/config.conf, --hostname-override=$(NODE_NAME)]
  ` + node + `
  ` + mounts + `
` + volume, "ipvs", "10.1.0.0/16", ""},
		"kubeadm, values after a space": {`
containers:
- name: kube-proxy
  command: [/usr/local/bin/kube-proxy, --config, /var/lib/kube-proxy/config.conf, --hostname-override, $(NODE_NAME)]
  ` + node + `
  ` + mounts + `
` + volume, "ipvs", "10.1.0.0/16", ""},
		"flags with their values after a space": {`
containers:
- name: kube-proxy
  command: [kube-proxy]
  args: [--hostname-override, $(NODE_NAME), --proxy-mode=ipvs]
  ` + node, "ipvs", "", ""},
		"a value that looks like a flag of its own": {`
containers:
- {name: kube-proxy, command: [kube-proxy, --cluster-cidr, 10.244.0.0/16, --proxy-mode, nftables, -v, "2"]}`,
			"nftables", "10.244.0.0/16", ""},
		"EKS": {`
containers:
- name: kube-proxy
  command: [kube-proxy, --v=2, --config=/var/lib/kube-proxy-config/config, --hostname-override=$(NODE_NAME)]
  ` + node + `
  volumeMounts: [{name: config, mountPath: /var/lib/kube-proxy-config/}]
volumes: [{name: config, configMap: {name: kube-proxy-config}}]`, "ipvs", "10.2.0.0/16", ""},
		"kops, with a runner that writes its log": {`
containers:
- name: kube-proxy
  command: [/go-runner]
  args: [--log-file=/var/log/kube-proxy.log, --also-stdout, /usr/local/bin/kube-proxy, --cluster-cidr=100.96.0.0/11,
    --conntrack-max-per-core=131072, --kubeconfig=/var/lib/kube-proxy/kubeconfig, --oom-score-adj=-998, --v=2]`,
			"iptables", "100.96.0.0/11", ""},
		"kops, with a pipe": {`
containers:
- name: kube-proxy
  command: [/bin/sh, -c]
  args: ["mkfifo /tmp/pipe; (tee -a /var/log/kube-proxy.log < /tmp/pipe & ) ; exec /usr/local/bin/kube-proxy ` +
			`--cluster-cidr=100.64.0.0/10 --proxy-mode=ipvs --v=2 > /tmp/pipe 2>&1"]`, "ipvs", "100.64.0.0/10", ""},
		"GKE": {`
containers:
- name: kube-proxy
  command: [/bin/sh, -c, "kube-proxy --cluster-cidr=10.4.0.0/14 --oom-score-adj=-998 --v=2 ` +
			`--iptables-sync-period=1m --iptables-min-sync-period=10s --proxy-mode=iptables 1>>/var/log/kube-proxy.log 2>&1"]`,
			"iptables", "10.4.0.0/14", ""},
		"AKS": {`
containers:
- {name: redirect, command: [sh, -c, "sleep 1"]}
- {name: kube-proxy, command: [kube-proxy, --conntrack-max-per-core=0, --metrics-bind-address=0.0.0.0:10249,
   --kubeconfig=/var/lib/kubelet/kubeconfig, --cluster-cidr=10.244.0.0/16, --detect-local-mode=ClusterCIDR,
   --pod-interface-name-prefix=, --v=3]}`, "iptables", "10.244.0.0/16", ""},
		"RKE, with a script of several lines": {`
containers:
- name: kube-proxy
  command: [/bin/bash, -ec]
  args:
  - |
    # the modules first
    modprobe ip_vs || true
    exec kube-proxy \
      --proxy-mode=ipvs \
      --cluster-cidr="10.42.0.0/16,fd00:42::/56" \
      --ipvs-strict-arp`, "ipvs", "10.42.0.0/16,fd00:42::/56", ""},
		"variables of the script": {`
containers:
- name: kube-proxy
  command: [sh, -c, 'FLAGS="--proxy-mode=nftables --v=4"; exec kube-proxy $FLAGS --cluster-cidr="${CIDR}"']
  env: [{name: CIDR, value: 10.5.0.0/16}]`, "nftables", "10.5.0.0/16", ""},
		"a variable of a ConfigMap": {`
containers:
- name: kube-proxy
  args: [--proxy-mode=$(MODE), "--cluster-cidr=$(CIDR)"]
  env:
  - {name: MODE, valueFrom: {configMapKeyRef: {name: settings, key: mode}}}
  - {name: CIDR, value: "$(PREFIX).0.0/16"}
  envFrom: [{configMapRef: {name: settings}}]`, "nftables", "",
			"variable CIDR is not known: the value of variable PREFIX"},
		"all variables of a ConfigMap": {`
containers:
- {name: kube-proxy, args: [--proxy-mode=$(P_mode)], envFrom: [{prefix: P_, configMapRef: {name: settings}}]}`,
			"nftables", "", ""},
		"the address of the node": {`
containers:
- name: kube-proxy
  command: [kube-proxy, --bind-address=$(HOST_IP), --proxy-mode=nftables]
  env: [{name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]`, "nftables", "", ""},
		"a dollar": {`
containers:
- {name: kube-proxy, command: [kube-proxy, --hostname-override=$$(NODE), --proxy-mode=ipvs]}`, "ipvs", "", ""},
		"one file of the ConfigMap": {`
containers:
- name: kube-proxy
  command: [kube-proxy, --config=/etc/kube-proxy.yaml]
  volumeMounts: [{name: kube-proxy, mountPath: /etc/kube-proxy.yaml, subPath: config.conf}]
` + volume, "ipvs", "10.1.0.0/16", ""},
		"a projected volume, with another name": {`
containers:
- name: kube-proxy
  command: [kube-proxy, --config=/etc/proxy/here.yaml]
  volumeMounts: [{name: all, mountPath: /etc/proxy}]
volumes: [{name: all, projected: {sources: [{secret: {name: kubeconfig}}, {configMap: {name: kube-proxy,
  items: [{key: config.conf, path: here.yaml}]}}]}}]`, "ipvs", "10.1.0.0/16", ""},
		"the entrypoint of the image": {`
containers:
- {name: proxy, args: [--proxy-mode=ipvs, "--cluster-cidr", 10.9.0.0/16]}`, "ipvs", "10.9.0.0/16", ""},
		"a program of another name": {`
containers:
- {name: proxy, command: [/opt/proxy, --proxy-mode=ipvs]}`, "ipvs", "", ""},
		"hyperkube": {`
containers:
- {name: proxy, command: [/hyperkube, kube-proxy, --proxy-mode=ipvs]}`, "ipvs", "", ""},
		"no mode": {`
containers:
- {name: kube-proxy, command: [kube-proxy]}`, "iptables", "", ""},
		"a file of the node": {`
containers:
- {name: kube-proxy, command: [kube-proxy, --config=/etc/proxy.yaml]}`, "", "",
			"--config=/etc/proxy.yaml: it is not in a ConfigMap: copy it from a node, and give its path to --from"},
		"a flag that nobody knows": {`
containers:
- {name: kube-proxy, command: [kube-proxy, --magic]}`, "", "", "unknown flag: --magic"},
		"a variable that is not known": {`
containers:
- name: kube-proxy
  command: [kube-proxy, --proxy-mode=$(MODE)]
  env: [{name: MODE, valueFrom: {secretKeyRef: {name: s, key: k}}}]`, "", "",
			"the value of variable MODE is not known: it is neither in the DaemonSet nor in a ConfigMap"},
		"a variable of the shell that is not known": {`
containers:
- {name: kube-proxy, command: [sh, -c, "kube-proxy --proxy-mode=$MODE"]}`, "", "", "MODE: unbound variable"},
		"what a command prints": {`
containers:
- {name: kube-proxy, command: [sh, -c, "kube-proxy --proxy-mode=` + "`cat /mode`" + `"]}`, "", "",
			"unexpected command"},
		"an exported variable": {`
containers:
- {name: kube-proxy, command: [sh, -c, "export MODE=ipvs; kube-proxy --proxy-mode=$MODE"],
   env: [{name: MODE, value: iptables}]}`, "ipvs", "", ""},
		"what echo prints, and hyperkube": {`
containers:
- {name: kube-proxy, command: [sh, -c, "echo starting kube-proxy; exec /hyperkube proxy --proxy-mode=ipvs"]}`, "ipvs",
			"", ""},
		"a condition": {`
containers:
- {name: kube-proxy, command: [sh, -c, "if [ -e /x ]; then MODE=ipvs; fi; kube-proxy --proxy-mode=$MODE"],
   env: [{name: MODE, value: iptables}]}`, "", "", "the value of variable MODE cannot be followed"},
		"input": {`
containers:
- {name: kube-proxy, command: [sh, -c, "read MODE </x; kube-proxy --proxy-mode=$MODE"],
   env: [{name: MODE, value: iptables}]}`, "", "", "the value of variable MODE cannot be followed"},
		"eval": {`
containers:
- {name: kube-proxy, command: [sh, -c, "eval MODE=ipvs; kube-proxy --proxy-mode=$MODE"],
   env: [{name: MODE, value: iptables}]}`, "", "", "cannot be followed"},
		"a default of the shell, and a Secret": {`
containers:
- name: kube-proxy
  command: [sh, -c, "kube-proxy --proxy-mode=${MODE:-ipvs}"]
  env:
  - {name: MODE, valueFrom: {secretKeyRef: {name: s, key: k}}}`, "", "", "the value of variable MODE is not known"},
		"a Secret that may override": {`
containers:
- name: kube-proxy
  command: [kube-proxy, --proxy-mode=$(mode)]
  envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: s}}]`, "", "",
			"the value of variable mode is not known: a Secret may set it"},
		"nothing": {`
containers:
- {name: kube-proxy}`, "", "", "does not tell the arguments"},
		"a script as the command": {`
containers:
- {name: kube-proxy, command: [/bin/sh, /opt/kube-proxy-start.sh]}`, "", "", "does not tell the arguments"},
		"two calls": {`
containers:
- name: kube-proxy
  command: [sh, -c, "if [ -e /x ]; then kube-proxy --proxy-mode=ipvs; else kube-proxy; fi"]`, "", "",
			"its shell script calls kube-proxy 2 times"},
		"positional parameters": {`
containers:
- {name: kube-proxy, command: [sh, -c, 'exec kube-proxy "$*"', --, --proxy-mode=ipvs]}`, "", "",
			"$* cannot be followed"},
		"positional parameters in a variable": {`
containers:
- {name: kube-proxy, command: [sh, -c, 'FLAGS="$*"; exec kube-proxy $FLAGS', --, --proxy-mode=ipvs]}`, "", "",
			"$* cannot be followed"},
		"a command of positional parameters": {`
containers:
- name: kube-proxy
  command: [sh, -c, 'if [ -e /x ]; then exec "$@"; fi; exec kube-proxy', --, kube-proxy, --proxy-mode=ipvs]`,
			"", "", "its shell script may call kube-proxy with other arguments: $@ cannot be followed"},
		"a variable that another one names": {`
containers:
- {name: kube-proxy, command: [bash, -c, 'exec kube-proxy --proxy-mode=${!NAME}'],
   env: [{name: NAME, value: MODE}, {name: MODE, value: ipvs}]}`, "", "", "${!NAME} cannot be followed"},
		"a call with a quoted program beside another one": {`
containers:
- name: kube-proxy
  command: [sh, -c, 'if [ -e /x ]; then exec "$BIN/kube-proxy" --proxy-mode=nftables; else exec kube-proxy; fi']`,
			"", "", "its shell script calls kube-proxy 2 times"},
		"a program that may be the proxy": {`
containers:
- name: kube-proxy
  command: [sh, -c, 'if [ -e /x ]; then exec "$PROXY" --proxy-mode=nftables; else exec kube-proxy; fi']`,
			"", "", "its shell script may call kube-proxy with other arguments: "},
		"a script in a script beside a call": {`
containers:
- name: kube-proxy
  command: [sh, -c, 'if [ -e /x ]; then sh -c "kube-proxy --proxy-mode=nftables"; else exec kube-proxy; fi']`,
			"", "", "its shell script may call kube-proxy with other arguments: what sh runs is not followed"},
		"a folder of programs": {`
containers:
- {name: kube-proxy, command: [sh, -c, 'BIN=/usr/local/bin; exec "$BIN/kube-proxy" --proxy-mode=ipvs']}`, "ipvs", "",
			""},
		"a variable that is the program": {`
containers:
- {name: kube-proxy, command: [sh, -c, '$RUN date; exec $PROXY --proxy-mode=ipvs'],
   env: [{name: PROXY, value: /usr/local/bin/kube-proxy}, {name: RUN, value: echo}]}`, "ipvs", "", ""},
		"a helper before the proxy": {`
containers:
- {name: logs, command: [tail, -F, /var/log/kube-proxy.log]}
- {name: kube-proxy, command: [kube-proxy, --proxy-mode=ipvs]}`, "ipvs", "", ""},
		"a helper before a proxy with another name": {`
containers:
- {name: logs, command: [tail, -F, /var/log/kube-proxy.log]}
- {name: proxy, command: [/usr/local/bin/kube-proxy, --proxy-mode=ipvs]}`, "ipvs", "", ""},
		"a script of the image": {`
containers:
- {name: kube-proxy, command: [sh, -c, "/run.sh"]}`, "", "", "its shell script calls kube-proxy 0 times"},
	}
}

// The arguments of the running DaemonSet are read, with the file that they name from the ConfigMap that it mounts.
func TestTheDaemonSetIsRead(t *testing.T) {
	file := func(cidr string) string {
		return "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nclusterCIDR: " +
			cidr + "\n"
	}
	configMap := func(data map[string]string) corev1.ConfigMap {
		return corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: data}
	}
	for name, test := range pods() {
		t.Run(name, func(t *testing.T) {
			var spec corev1.PodSpec
			require.NoError(t, yaml.UnmarshalStrict([]byte(test.pod), &spec))
			const maps = "/api/v1/namespaces/kube-system/configmaps/"
			kubeconfig := serving(t, map[string]any{
				maps + "kube-proxy":        configMap(map[string]string{"config.conf": file("10.1.0.0/16")}),
				maps + "kube-proxy-config": configMap(map[string]string{"config": file("10.2.0.0/16")}),
				maps + "settings":          configMap(map[string]string{"mode": "nftables"}),
				"/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy": appsv1.DaemonSet{
					TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
					Spec:     appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
				}})
			c, _, err := Configuration(t.Context(), "daemonset", &source.Cluster{Kubeconfig: kubeconfig})
			if test.err != "" {
				require.ErrorContains(t, err, "DaemonSet kube-system/kube-proxy: ")
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			assert.EqualValues(t, test.mode, c.Configuration.Mode)
			assert.Equal(t, test.cidrs, strings.Join(c.Configuration.DetectLocal.ClusterCIDRs, ","))
		})
	}
	_, _, err := Configuration(t.Context(), "daemonset", &source.Cluster{})
	require.EqualError(t, err, "daemonset needs --kubeconfig")
}

// Flags in --from are split as a shell does.
func TestFlagsAreSplitLikeAShellDoes(t *testing.T) {
	c, _, err := Configuration(t.Context(), `--proxy-mode ipvs --cluster-cidr "10.1.0.0/16" --hostname-override=a\ b`,
		&source.Cluster{})
	require.NoError(t, err)
	assert.EqualValues(t, "ipvs", c.Configuration.Mode)
	assert.Equal(t, []string{"10.1.0.0/16"}, c.Configuration.DetectLocal.ClusterCIDRs)
	assert.Equal(t, "a b", c.Configuration.HostnameOverride)
	for _, wrong := range []string{`--proxy-mode="ipvs`, "--proxy-mode=$MODE", "--proxy-mode=ipvs nftables"} {
		_, _, err := Configuration(t.Context(), wrong, &source.Cluster{})
		require.Error(t, err, wrong)
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

func (p *program) flowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "flow 'SOURCE -> DESTINATION'", Short: "Say what happens to a packet on a node, and why",
		Long: "SOURCE: pod [NAMESPACE/]NAME, pod ADDRESS, node, or outside ADDRESS.\n" +
			"DESTINATION: [NAMESPACE/]SERVICE:PORT or ADDRESS:PORT, with /UDP or /SCTP unless it is TCP.",
		Args: exactly("the packet, 'SOURCE -> DESTINATION',"),
		Example: `  # From a pod to a Service, on the pod's node
  kubectl serviceproxy flow 'pod shop/cart-0 -> shop/web:443' --proxy daemonset

  # From outside to a node port
  kubectl serviceproxy flow 'outside 203.0.113.7 -> 192.0.2.1:30080' --node n1`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return p.flow(cmd.Context(), args[0]) },
	}
	p.addSource(cmd)
	p.addProxy(cmd)
	p.addURL(cmd)
	p.brain.add(cmd)
	return cmd
}

// flow prints the outcome of a packet.
func (p *program) flow(ctx context.Context, text string) error {
	ctx, cancel, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if p.url != "" {
		return p.printFromPage(ctx, "/api/flow?q="+url.QueryEscape(text), &oracle.Answer{})
	}
	q, err := p.question(ctx, text)
	if err != nil {
		return err
	}
	detect, config, err := p.readProxy(ctx)
	if err != nil {
		return err
	}
	return p.printStates(ctx, detect, true, func(out io.Writer, s *sink.Snapshot) error {
		o, err := oracle.OfSnapshot(s, config)
		if err != nil {
			return err
		}
		text, err := q.text(s)
		if err != nil {
			return err
		}
		answer, err := o.Ask(text)
		if err != nil {
			return fmt.Errorf("%w: see kubectl serviceproxy flow --help", err)
		}
		return p.print(out, answer)
	})
}

// question is a packet whose ends may be given by name. The oracle knows only addresses, and pods that are endpoints.
type question struct {
	source, destination string
	pod                 *corev1.Pod // the source, if it is one that the API server knows by name
	node                string      // the node that is asked about
	service             model.ServiceName
	port, protocol      string // of the service; "" if not given
}

// question reads a packet. A pod that the API server knows also determines the node, unless that is given.
func (p *program) question(ctx context.Context, text string) (*question, error) {
	source, destination, ok := strings.Cut(text, "->")
	if !ok {
		return nil, fmt.Errorf("%q is not a packet, 'SOURCE -> DESTINATION': see kubectl serviceproxy flow --help", text)
	}
	q := &question{source: strings.Join(strings.Fields(source), " "), destination: strings.TrimSpace(destination)}
	if err := p.readDestination(q); err != nil {
		return nil, err
	}
	name, ok := strings.CutPrefix(q.source, "pod ")
	if _, err := netip.ParseAddr(name); !ok || err == nil {
		return q, nil
	}
	namespace, name, err := p.cluster.qualify(name)
	if err != nil {
		return nil, err
	}
	q.source = "pod " + namespace + "/" + name
	if !p.fromCluster() {
		return q, nil
	}
	client, err := p.cluster.client()
	if err != nil {
		return nil, err
	}
	if q.pod, err = client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, inTime(ctx, notFound(err, "unknown pod %s/%s: check the name against kubectl get pods -n %s",
			namespace, name, namespace))
	}
	if len(q.pod.Status.PodIPs) == 0 || q.pod.Spec.NodeName == "" {
		return nil, fmt.Errorf("pod %s/%s has no address yet: kubectl describe pod -n %s %s says why", namespace, name,
			namespace, name)
	}
	if p.objects.NodeName == "" {
		p.objects.NodeName = q.pod.Spec.NodeName
	}
	q.node = p.objects.NodeName
	return q, nil
}

// readDestination finds out whether the destination is a Service.
func (p *program) readDestination(q *question) error {
	address, _, _ := strings.Cut(q.destination, "/")
	if _, err := netip.ParseAddrPort(address); err == nil {
		return nil
	}
	if _, err := netip.ParseAddr(address); err == nil {
		return fmt.Errorf("the destination %s has no port: give ADDRESS:PORT, or [ADDRESS]:PORT for IPv6", q.destination)
	}
	name, port, _ := strings.Cut(q.destination, ":")
	q.port, q.protocol, _ = strings.Cut(port, "/")
	var err error
	q.service, err = p.serviceName(name)
	return err
}

// text returns the question with addresses for names.
func (q *question) text(s *sink.Snapshot) (string, error) {
	if q.service.Name == "" {
		address, _, _ := strings.Cut(q.destination, "/")
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return "", err
		}
		source, _ := q.sourceIn(model.FamilyOf(to.Addr()))
		return source + " -> " + q.destination, nil
	}
	entry := s.Service(q.service)
	if entry == nil {
		return "", unknownService(q.service)
	}
	port, protocol, err := q.portOf(entry.Service)
	if err != nil {
		return "", err
	}
	for _, ip := range entry.Service.ClusterIPs {
		if source, ok := q.sourceIn(model.FamilyOf(ip)); ok {
			return fmt.Sprintf("%s -> %v/%s", source, netip.AddrPortFrom(ip, port), protocol), nil
		}
	}
	return "", fmt.Errorf("%v has no cluster IP in the IP family of %q: see kubectl get service -n %s %s -o wide",
		q.service, q.source, q.service.Namespace, q.service.Name)
}

// portOf returns the number of the service's port that the question names, or its only one. A number that is no port of
// the service can be asked about, too.
func (q *question) portOf(svc *model.Service) (uint16, string, error) {
	number, err := strconv.ParseUint(q.port, 10, 16)
	isNumber := err == nil
	var ports []string
	for _, port := range svc.Ports {
		ports = append(ports, strings.TrimPrefix(fmt.Sprintf("%s %d/%v", port.Name, port.Port, port.Protocol), " "))
		named := q.port == "" && len(svc.Ports) == 1 || q.port != "" && port.Name == q.port ||
			isNumber && port.Port == uint16(number)
		if named && (q.protocol == "" || strings.EqualFold(q.protocol, port.Protocol.String())) {
			return port.Port, port.Protocol.String(), nil
		}
	}
	if isNumber {
		protocol := q.protocol
		if protocol == "" {
			protocol = model.TCP.String()
		}
		return uint16(number), protocol, nil
	}
	return 0, "", fmt.Errorf("which port of Service %v? It has %s", q.service, strings.Join(ports, ", "))
}

// sourceIn returns the source as the oracle understands it, for a destination of a family, or false if the source has
// no address of that family.
func (q *question) sourceIn(family model.Family) (string, bool) {
	if q.pod == nil {
		words := strings.Fields(q.source)
		if len(words) == 0 {
			return q.source, true
		}
		address, err := netip.ParseAddr(words[len(words)-1])
		return q.source, err != nil || model.FamilyOf(address) == family
	}
	i := slices.IndexFunc(q.pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		address, err := netip.ParseAddr(ip.IP)
		return err == nil && model.FamilyOf(address) == family
	})
	if i < 0 {
		return q.source, false
	}
	here := q.pod.Spec.NodeName == q.node
	kind := map[bool]string{true: "local pod ", false: "remote pod "}[here]
	if q.pod.Spec.HostNetwork { // its packets are those of its node
		kind = map[bool]string{true: "node ", false: "outside "}[here]
	}
	return kind + q.pod.Status.PodIPs[i].IP, true
}

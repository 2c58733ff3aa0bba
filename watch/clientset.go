package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// ClientsetOptions say what a [Clientset] watches. The zero value watches what kube-proxy watches.
type ClientsetOptions struct {
	// ServiceProxyName selects the Services whose label service.kubernetes.io/service-proxy-name has this value. If it
	// is empty, those without the label are selected; if it is "*", localstate.AllServiceProxies, all are. The label of
	// EndpointSlices does not matter.
	ServiceProxyName string
	// EndpointDetails keeps the endpoints' targetRef and hostname, for programs that set the same option of
	// localstate.ClusterOptions.
	EndpointDetails bool
	// SliceAnnotations keeps all annotations of EndpointSlices, for programs whose AdmitSlice in localstate.ClusterOptions
	// reads them. Labels are always kept.
	SliceAnnotations bool
	// HeadlessServices also delivers headless Services and their EndpointSlices, for programs that set the same option of
	// localstate.ClusterOptions.
	HeadlessServices bool
	// NoNodes leaves the Nodes out, for programs that set NodeIPs and Zone of localstate.Options themselves.
	// InformersOptions has it, too, and NoServiceCIDRs as well.
	NoNodes bool
	// NoServiceCIDRs leaves the ServiceCIDRs out, for programs that may not list them, or that do not drop traffic to
	// unallocated service addresses (S33).
	NoServiceCIDRs bool
	// OnlyNodes leaves everything but the Nodes out, for programs that follow them beside another source: such a source
	// feeds no service proxy, which would take the cluster for one without Services. Nodes come without annotations, and
	// of their status with the addresses alone. Run does not wait for Nodes that the program may not read.
	OnlyNodes bool
}

// Clientset is the [Source] that lists and watches with an API server. It is safe for concurrent use.
//
// # Requests
//
// The API server does the filtering (S1): Services of other proxies, headless Services and their EndpointSlices, and
// other nodes' Nodes are not sent. The program must be allowed to list and watch services and nodes,
// endpointslices.discovery.k8s.io and servicecidrs.networking.k8s.io, except those that the options leave out. Until it
// is, Run logs that, keeps trying and does not report completeness.
//
// Run does not wait for ServiceCIDRs that it cannot get, because only S33 needs them. RBAC rules from before v1.33 do
// not allow it: Run logs that, and lists them within a minute once permission is granted. If the server does not have
// them (before v1.33), Run tries again every ten minutes, in case it is upgraded.
//
// # When the API server is unavailable
//
// A lost watch resumes where it ended. If the server no longer has the changes since then, everything is listed again
// and passed to the handler, along with the deletions of objects that have vanished, in one Update for each kind of
// object. Attempts are between 0.8 and 60 seconds apart.
//
// While the API server cannot be reached, a line with its URL is logged at once, then every five minutes. If it does
// not answer at all, for example because a firewall drops the packets, that is after 15 seconds; client-go alone would
// be silent for more than five minutes. A server that answers that it is overloaded or has no storage counts as well.
//
// Some tunnels and proxies drop the bookmark that ends a streamed list, without which client-go waits forever. A
// streamed list that has sent nothing for 30 seconds, or that broke off three times in a row, is given up: Run logs
// that and lists that resource without streaming from then on.
//
// An API server may answer requests and yet send nothing on a watch: its storage was restored from a backup, and its
// resourceVersions are still lower than before, or it is behind a proxy whose connection has died (S68). If nothing has
// been heard of a kind of object for one and a half to two minutes, Run asks for its current version, with pauses that
// grow to an hour. If that is lower than the last one heard, Run logs that and lists the kind anew, without a version.
// If it is higher, the watch is begun again. A server that sends no bookmarks may be silent for ten minutes longer.
// With bookmarks, a quiet cluster causes no requests.
//
// # Memory
//
// No API object is kept, only names, to find out which objects a new list lacks. If the server streams lists (by
// default since Kubernetes v1.34), the objects of the first one are handed over one by one as they come in; of later
// ones, and of lists that are not streamed, all objects are in memory at the same time. Fields that do not affect
// service traffic are dropped as soon as an object is decoded: managedFields, ownerReferences, finalizers; of
// EndpointSlices also, unless SliceAnnotations is set, all annotations but
// endpoints.kubernetes.io/last-change-trigger-time, and the endpoints' deprecatedTopology and, unless EndpointDetails
// is set, their targetRef and hostname; of Nodes also images and volumes.
//
// # Protobuf
//
// Protobuf takes a fraction of JSON's time and memory, on both sides. The client uses it by default if rest.Config's
// ContentType and AcceptContentTypes are empty; a program that sets them should set them to
// "application/vnd.kubernetes.protobuf" and "application/vnd.kubernetes.protobuf,application/json". rest.Config's QPS
// and Burst matter little: there are at most four lists and four watches.
type Clientset struct {
	client kubernetes.Interface
	opts   ClientsetOptions
	after  func(time.Duration, func()) timer // gives up streamed lists that do not end
}

var _ Source = (*Clientset)(nil)

// NewClientset returns a source that lists and watches with client, once Run is called.
func NewClientset(client kubernetes.Interface, opts ClientsetOptions) (*Clientset, error) {
	var errs []error
	if client == nil {
		errs = append(errs, errors.New("client is nil"))
	}
	if opts.OnlyNodes && opts.NoNodes {
		errs = append(errs, errors.New("both OnlyNodes and NoNodes are set"))
	}
	errs = append(errs, validateServiceProxyName(opts.ServiceProxyName))
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("clientset source: %w", err)
	}
	return &Clientset{client: client, opts: opts, after: afterFunc}, nil
}

// ServiceProxyName returns the option, for programs that read from the source.
func (c *Clientset) ServiceProxyName() string { return c.opts.ServiceProxyName }

// DeliversNodes reports whether the source delivers Nodes: see [Source].
func (c *Clientset) DeliversNodes() bool { return !c.opts.NoNodes }

// Run implements [Source]. The error is always nil.
func (c *Clientset) Run(ctx context.Context, nodeName string, h Handler) error {
	inputs := c.inputs(nodeName)
	var calls calls
	var unlisted atomic.Int32
	unlisted.Store(int32(len(inputs) + 1))
	listed := func() {
		if unlisted.Add(-1) == 0 {
			h.Synced()
		}
	}
	var wg sync.WaitGroup
	outage := outage{server: serverOf(c.client.CoreV1().RESTClient())}
	for _, in := range inputs {
		store := newNameStore(in.kind, h, listed)
		store.keep = kept{details: c.opts.EndpointDetails, annotations: c.opts.SliceAnnotations,
			onlyNodes: c.opts.OnlyNodes}
		store.outage, store.stream.after = &outage, c.after
		wg.Go(func() { in.run(ctx, c.client, store, &calls) })
	}
	listed() // that there is nothing to list
	wg.Wait()
	<-ctx.Done()
	calls.stop()
	return nil
}

// input is one kind of object to list and watch.
type input struct {
	kind     kind
	lw       *cache.ListWatch
	optional bool // Run goes on without those that the program may not read
}

// inputs returns what is listed and watched for a node, for none or for all of them.
func (c *Clientset) inputs(nodeName string) []input {
	servedHere := "!" + labelServiceProxyName
	switch name := c.opts.ServiceProxyName; name {
	case "":
	case allServiceProxies:
		servedHere = ""
	default:
		servedHere = labelServiceProxyName + "=" + name
	}
	serviceSelectors := selectors{
		labels: servedHere,
		fields: fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
	}
	sliceSelectors := selectors{labels: "!" + corev1.IsHeadlessService}
	if c.opts.HeadlessServices {
		serviceSelectors.fields, sliceSelectors.labels = "", ""
	}
	inputs := []input{
		{services, listWatch(c.client.CoreV1().Services(metav1.NamespaceAll), serviceSelectors), false},
		{endpointSlices, listWatch(c.client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), sliceSelectors), false},
	}
	if !c.opts.NoServiceCIDRs {
		inputs = append(inputs, input{serviceCIDRs, listWatch(c.client.NetworkingV1().ServiceCIDRs(), selectors{}), true})
	}
	if c.opts.OnlyNodes {
		inputs = nil
	}
	if nodeName != "" && !c.opts.NoNodes {
		var s selectors // of AllNodes
		if nodeName != AllNodes {
			s.fields = fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String()
		}
		inputs = append(inputs, input{nodes, listWatch(c.client.CoreV1().Nodes(), s), c.opts.OnlyNodes})
	}
	return inputs
}

// selectors are what the API server filters by.
type selectors struct{ labels, fields string }

// typedClient has the methods that the generated clients have in common.
type typedClient[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error)
}

func listWatch[L runtime.Object](client typedClient[L], s selectors) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.LabelSelector, opts.FieldSelector = s.labels, s.fields
			return client.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			opts.LabelSelector, opts.FieldSelector = s.labels, s.fields
			return client.Watch(ctx, opts)
		},
	}
}

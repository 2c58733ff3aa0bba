package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// access is the connection to the API server that kubectl's flags describe. They are client-go's: k8s.io/cli-runtime,
// which wraps them, requires kustomize and ten more modules (docs/libraries.md).
type access struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// register adds kubectl's flags.
func (a *access) register(root *cobra.Command) {
	set := root.PersistentFlags()
	a.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	set.StringVar(&a.rules.ExplicitPath, "kubeconfig", "", "Path to the kubeconfig file to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(&a.overrides, set, names)
	complete(root, "namespace", a.completeObjects(listNamespaces))
	complete(root, "context", a.completeFile(contexts))
	complete(root, "cluster", a.completeFile(clusters))
	complete(root, "user", a.completeFile(users))
}

func (a *access) loader() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(a.rules, &a.overrides)
}

// config returns the configuration of a client.
func (a *access) config() (*rest.Config, error) {
	config, err := a.loader().ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("there is no kubeconfig: name one with --kubeconfig or KUBECONFIG, or read files with --file")
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w: kubectl config view prints what is used", err)
	}
	config.QPS = -1 // a few requests, whose number does not depend on the cluster
	return config, nil
}

func (a *access) client() (kubernetes.Interface, error) {
	config, err := a.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// namespace returns the namespace that names without one are in: that of --namespace, or of the context.
func (a *access) namespace() (string, error) {
	name, _, err := a.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return name, nil
}

// qualify splits a name into its namespace, which may be left out, and the rest.
func (a *access) qualify(name string) (namespace, rest string, err error) {
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		return namespace, rest, nil
	}
	namespace, err = a.namespace()
	return namespace, name, err
}

// mayRead returns an error if something that the answer depends on may not be read. Without it the source would wait
// for permission, as a proxy has to, and the user for the timeout.
func mayRead(ctx context.Context, c kubernetes.Interface) error {
	one := metav1.ListOptions{Limit: 1}
	for _, list := range []func() error{
		func() error { _, err := c.CoreV1().Services(metav1.NamespaceAll).List(ctx, one); return err },
		func() error { _, err := c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx, one); return err },
		func() error { _, err := c.CoreV1().Nodes().List(ctx, one); return err },
	} {
		if err := list(); err != nil {
			return inTime(ctx, err)
		}
	}
	return nil
}

// inTime replaces an error with the reason why the context has ended, if it has.
func inTime(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// nextStep adds to an error of the API server what the user can do about it.
func nextStep(err error) error {
	var unreachable *url.Error
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nAn administrator can grant all that this plugin reads:\n"+
			"  kubectl serviceproxy rbac %s | kubectl apply -f -", err, subjectOf(err))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w\nThe API server does not accept these credentials: log in again, or choose another --context "+
			"(kubectl config get-contexts)", err)
	case errors.As(err, &unreachable):
		return fmt.Errorf("%w\nThe server cannot be reached: is this the right --context (kubectl config get-contexts), and "+
			"does kubectl cluster-info work?", err)
	}
	return err
}

// subjectOf returns the flags for the user who, according to an error, lacks a permission.
func subjectOf(err error) string {
	user := "USER"
	if found := regexp.MustCompile(`User "([^"]+)"`).FindStringSubmatch(err.Error()); found != nil {
		user = found[1]
	}
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		return "--serviceaccount " + account
	}
	return "--user " + quote(user)
}

// quote quotes a name for a shell, if it has to be.
func quote(name string) string {
	if regexp.MustCompile(`^[A-Za-z0-9@:._/=-]+$`).MatchString(name) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

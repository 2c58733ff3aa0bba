package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// completionTimeout limits a request for names: a shell waits for them.
const completionTimeout = 3 * time.Second

// complete makes a function the source of a flag's values.
func complete(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // there is no such flag: a mistake in this program
	}
}

// fixed completes these values. Otherwise the shell completes names of files.
func fixed(values ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveDefault
	}
}

// lister lists objects of the cluster.
type lister func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error)

func listNodes(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
	return c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
}

func listNamespaces(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
	return c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
}

// names returns the names of objects. If they cannot be listed it returns none, and nothing is completed.
func (a *access) names(list lister) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	client, err := a.client()
	if err != nil {
		return nil
	}
	objects, err := list(ctx, client)
	if err != nil {
		return nil
	}
	_ = meta.EachListItem(objects, func(object runtime.Object) error {
		o, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		names = append(names, o.GetName())
		return nil
	})
	return names
}

// completeObjects completes names of objects.
func (a *access) completeObjects(list lister) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.names(list), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeService completes the name of a Service: of the current namespace or, after a name and a slash, of another.
func (a *access) completeService(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, _, err := a.qualify(begun)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	services := a.names(func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
		return c.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	})
	if strings.Contains(begun, "/") {
		for i, name := range services {
			services[i] = namespace + "/" + name
		}
		return services, cobra.ShellCompDirectiveNoFileComp
	}
	for _, name := range a.names(listNamespaces) {
		services = append(services, name+"/")
	}
	return services, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeFile completes names that are in the kubeconfig.
func (a *access) completeFile(names func(api.Config) []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		config, err := a.loader().RawConfig()
		if err != nil && !clientcmd.IsEmptyConfig(err) {
			return nil, cobra.ShellCompDirectiveError
		}
		return names(config), cobra.ShellCompDirectiveNoFileComp
	}
}

func contexts(c api.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) }
func clusters(c api.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) }
func users(c api.Config) []string    { return slices.Sorted(maps.Keys(c.AuthInfos)) }

package main

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

//go:embed rbac.yaml
var roles string

// roleName is the name of the roles in rbac.yaml.
const roleName = "serviceproxy-viewer"

func (p *program) rbacCommand() *cobra.Command {
	var users, groups, accounts []string
	cmd := &cobra.Command{
		Use: "rbac", Short: "Print the permissions that the other commands need", Args: cobra.NoArgs,
		Example: `  # Grant them to a user, a group or a service account
  kubectl serviceproxy rbac --user jane | kubectl apply -f -
  kubectl serviceproxy rbac --group developers --serviceaccount monitoring:reports | kubectl apply -f -

  # Only the roles
  kubectl serviceproxy rbac`,
		RunE: func(*cobra.Command, []string) error {
			subjects, err := subjects(users, groups, accounts)
			if err != nil {
				return err
			}
			text, err := permissions(subjects)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(p.out, text)
			return err
		},
	}
	set := cmd.Flags() // --user is kubectl's elsewhere: the user of the kubeconfig
	set.StringArrayVar(&users, "user", nil, "the `name` of a user to grant them to")
	set.StringArrayVar(&groups, "group", nil, "the `name` of a group to grant them to")
	set.StringArrayVar(&accounts, "serviceaccount", nil, "a service account to grant them to, `NAMESPACE:NAME`")
	return cmd
}

func subjects(users, groups, accounts []string) (all []rbacv1.Subject, err error) {
	for _, name := range users {
		all = append(all, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name})
	}
	for _, name := range groups {
		all = append(all, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name})
	}
	for _, account := range accounts {
		namespace, name, ok := strings.Cut(account, ":")
		if !ok || namespace == "" || name == "" {
			return nil, fmt.Errorf("--serviceaccount %q is not NAMESPACE:NAME", account)
		}
		all = append(all, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name})
	}
	return all, nil
}

// permissions returns the roles, and their bindings if there are subjects.
func permissions(subjects []rbacv1.Subject) (string, error) {
	if len(subjects) == 0 {
		return roles, nil
	}
	everywhere := rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: bindingName(subjects)}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName}}
	system := rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: bindingName(subjects), Namespace: metav1.NamespaceSystem}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleName}}
	text := roles
	for _, binding := range []any{everywhere, system} {
		b, err := yaml.Marshal(binding)
		if err != nil {
			return "", err
		}
		text += "---\n" + string(b)
	}
	return text, nil
}

// bindingName returns a name that only a binding of the same subjects has, so that one does not replace another.
func bindingName(subjects []rbacv1.Subject) string {
	name := roleName
	for _, s := range subjects {
		name += ":" + strings.ToLower(s.Kind) + ":" + strings.TrimPrefix(s.Namespace+"."+s.Name, ".")
	}
	return strings.ReplaceAll(name, "/", "_") // not allowed in a path of the API
}

package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// difference describes traffic or an object that the two proxies treat differently.
type difference struct {
	// Object is a service port or another object.
	Object string `json:"object"`
	// Destination and Senders say which connections differ, if any.
	Destination string   `json:"destination,omitempty"`
	Senders     []string `json:"senders,omitempty"`
	// Before and After say how the two proxies treat them.
	Before string `json:"before"`
	After  string `json:"after"`
	// Rule is the rule of docs/semantics.md that causes the difference.
	Rule string `json:"rule,omitempty"`
	// Connections is the number of tracked connections to the destination, if they were counted.
	Connections *int `json:"connections,omitempty"`
	// Nodes are the nodes with the difference.
	Nodes []string `json:"nodes"`
	// NotCompared is why the object, which may be a node, was not compared: then this is no difference.
	NotCompared string `json:"notCompared,omitempty"`

	service model.ServiceName // whose traffic or object it is, if it is one Service's
	// lasting: no setting of the new proxy keeps the earlier behaviour.
	lasting bool
}

// key is equal for the same difference on two nodes, whose addresses differ.
func (d difference) key() string {
	return strings.Join(append([]string{d.Object, d.Destination, d.Before, d.After, d.Rule, d.NotCompared,
		fmt.Sprint(d.lasting)}, d.Senders...), "\x00")
}

// union is the differences of all nodes.
type union struct {
	list  []difference
	index map[string]int // by key
}

// add adds the differences of a node.
func (u *union) add(more []difference, node string) {
	for _, d := range more {
		i, ok := u.index[d.key()]
		if !ok {
			i, u.list = len(u.list), append(u.list, d)
			u.index[d.key()] = i
		}
		u.list[i].Nodes = append(u.list[i].Nodes, node)
	}
}

func (u *union) sorted() []difference {
	slices.SortStableFunc(u.list, func(a, b difference) int { return cmp.Compare(a.Object, b.Object) })
	return u.list
}

package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A set and a chain that looks an address up in it, in one transaction.
func Example() {
	table := dataplane.TableKey{Family: model.IPv4, Name: "example"}
	blocked := &dataplane.Set{Name: "blocked", Key: []dataplane.Field{dataplane.SourceAddr}}
	tx := dataplane.NewTransaction(table)
	tx.AddTable("who may not come in")
	tx.AddSet(blocked)
	tx.AddElements(blocked,
		dataplane.Element{Key: string(dataplane.AppendAddr(nil, netip.MustParseAddr("192.0.2.66")))})
	tx.AddChain(&dataplane.Chain{Name: "check"})
	tx.AddRule("check", &dataplane.Rule{Statements: []dataplane.Statement{
		dataplane.InSet{Set: blocked}, dataplane.Drop{}}})

	kernel := dataplane.NewFake() // or NewNetlink
	if err := kernel.Apply(context.Background(), tx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(kernel.Dump(table))
	// Output:
	// table ip example {
	// 	comment "who may not come in"
	//
	// 	set blocked {
	// 		typeof ip saddr
	// 		elements = { 192.0.2.66 }
	// 	}
	//
	// 	chain check {
	// 		ip saddr @blocked drop
	// 	}
	// }
}

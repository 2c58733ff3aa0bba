package dataplane_test

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func Example() {
	ctx := context.Background()
	var ipt dataplane.Interface = dataplane.NewFake(model.IPv4) // or dataplane.New, as root

	web := dataplane.Chain{Name: "KPL-WEB", Origin: "default/web", Rules: []string{
		"-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -m comment --comment " + dataplane.Quote("default/web:http") +
			" -m statistic --mode random --probability " + dataplane.Probability(1, 2) +
			" -j DNAT --to-destination 10.244.1.5:8080",
		"-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.6:8080",
	}}
	err := ipt.Restore(ctx, &dataplane.Batch{Tables: []dataplane.TableBatch{{
		Table:  dataplane.NAT,
		Chains: []dataplane.Chain{web},
		Insert: []dataplane.BuiltinRule{{Chain: "PREROUTING", Rule: "-j KPL-WEB"},
			{Chain: "OUTPUT", Rule: "-j KPL-WEB"}},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(ipt.(*dataplane.Fake).Dump())

	web.Rules = append(web.Rules, "-j KPL-NOSUCH")
	err = ipt.Restore(ctx,
		&dataplane.Batch{Tables: []dataplane.TableBatch{{Table: dataplane.NAT, Chains: []dataplane.Chain{web}}}})
	var refused *dataplane.RestoreError
	if errors.As(err, &refused) {
		fmt.Printf("refused because of %s: %s\n", refused.Origin, refused.Text)
	}
	// Output:
	// *nat
	// :PREROUTING ACCEPT [0:0]
	// :INPUT ACCEPT [0:0]
	// :OUTPUT ACCEPT [0:0]
	// :POSTROUTING ACCEPT [0:0]
	// :KPL-WEB - [0:0]
	// -A PREROUTING -j KPL-WEB
	// -A OUTPUT -j KPL-WEB
	// -A KPL-WEB -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.1.5:8080
	// -A KPL-WEB -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.6:8080
	// COMMIT
	// refused because of default/web: -A KPL-WEB -j KPL-NOSUCH
}

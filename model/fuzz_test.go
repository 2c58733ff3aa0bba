package model_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// No JSON makes a constructor panic. A value that it accepts is in normal form, and survives a round trip through JSON.

func FuzzServiceJSON(f *testing.F) {
	addGolden(f, "service", "service-small")
	f.Add(
		[]byte(
			`{"name":{"namespace":"a","name":"b"},"clusterIPs":["::ffff:10.0.0.1","fd00::1"],` +
				`"externalIPs":["10.0.0.2","fd00::2","10.0.0.2"],` +
				`"loadBalancerSourceRanges":["10.0.0.0/8","::ffff:10.1.0.0/112","::/0"],"sessionAffinityTimeout":"1.5h",` +
				`"ports":[{"protocol":"UDP","port":53},{"protocol":"TCP","port":53,"nodePort":1}]}`))
	fuzz(f, model.NewService)
}

func FuzzEndpointJSON(f *testing.F) {
	addGolden(f, "endpoint", "endpoint-small")
	f.Add(
		[]byte(
			`{"port":{"service":{"namespace":"a","name":"b"},"protocol":"SCTP"},"target":"[::ffff:10.0.0.1]:80",` +
				`"sets":"Local,Cluster","local":true}`))
	fuzz(f, model.NewEndpoint)
}

func FuzzNodeJSON(f *testing.F) {
	addGolden(f, "node", "node-small")
	f.Add(
		[]byte(
			`{"name":"n","ips":["10.0.0.1","10.0.0.1"],"podCIDRs":["10.1.0.1/16"],` +
				`"localPods":{"cidrs":["::ffff:10.0.0.0/104","fd00::/8"]}}`))
	fuzz(f, model.NewNode)
}

func addGolden(f *testing.F, names ...string) {
	for _, name := range names {
		text, err := os.ReadFile("testdata/" + name + ".json")
		require.NoError(f, err)
		f.Add(text)
	}
}

func fuzz[T any, P equaler[T]](f *testing.F, construct func(T) (P, error)) {
	f.Fuzz(func(t *testing.T, text []byte) {
		var v T
		if json.Unmarshal(text, &v) != nil {
			return
		}
		_ = P(&v).String()
		made, err := construct(v)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		again, err := construct(*made)
		require.NoError(t, err)
		require.True(t, again.Equal(made), "%v\nis put into form once more:\n%v", made, again)
		roundTrip[T, P](t, made)
	})
}

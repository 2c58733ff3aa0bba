package differential

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// FuzzAgainstUpstream lets the fuzzer make the choices in a script.
func FuzzAgainstUpstream(f *testing.F) {
	for seed := range uint64(20) {
		d := testkit.Seeded(seed)
		input := make([]byte, 300)
		for i := range input {
			input[i] = byte(d.IntN(256))
		}
		f.Add(input, seed%4 == 3)
	}
	f.Fuzz(func(t *testing.T, input []byte, malformed bool) {
		random := testkit.Input(input)
		check(t, randomScript(&random, malformed), "the input that the fuzzer saved")
	})
}

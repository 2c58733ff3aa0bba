package differential

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testdice"
)

// FuzzAgainstUpstream lets the fuzzer make the choices in a script.
func FuzzAgainstUpstream(f *testing.F) {
	for seed := range uint64(20) {
		d := testdice.Seeded(seed)
		input := make([]byte, 300)
		for i := range input {
			input[i] = byte(d.Roll(256))
		}
		f.Add(input, seed%4 == 3)
	}
	f.Fuzz(func(t *testing.T, input []byte, malformed bool) {
		dice := testdice.Input(input)
		check(t, randomScript(&dice, malformed), "the input that the fuzzer saved")
	})
}

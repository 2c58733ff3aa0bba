package differential

import "testing"

// FuzzAgainstUpstream lets the fuzzer make the choices of a script.
func FuzzAgainstUpstream(f *testing.F) {
	for seed := range uint64(20) {
		d := diceOf(seed)
		input := make([]byte, 300)
		for i := range input {
			input[i] = byte(d.roll(256))
		}
		f.Add(input, seed%4 == 3)
	}
	f.Fuzz(func(t *testing.T, input []byte, malformed bool) {
		check(t, randomScript(&byteDice{input}, malformed), "the input that the fuzzer saved")
	})
}

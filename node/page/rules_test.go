package page

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The page has the text of every rule that an answer or a picture may name.
func TestThePageHasTheRules(t *testing.T) {
	answer := newRig(t, nil, Options{}).request("/rules.json")
	assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
	got := map[string]string{}
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &got))
	assert.Equal(t, "Hairpin: a pod that reaches itself through a service is masqueraded.", got["S29"])
	for _, file := range []string{"node/page/service.go", "sink/oracle/oracle.go", "sink/oracle/ask.go",
		"sink/oracle/flow.go"} {
		source, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`"(S\d+[a-z]?)"`).FindAllStringSubmatch(string(source), -1) {
			assert.Contains(t, got, m[1], file)
		}
	}
}

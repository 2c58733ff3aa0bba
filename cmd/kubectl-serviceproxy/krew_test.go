package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// plugin is a manifest for krew, version v1alpha2.
type plugin struct {
	APIVersion string                `json:"apiVersion"`
	Kind       string                `json:"kind"`
	Metadata   struct{ Name string } `json:"metadata"`
	Spec       struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Caveats          string     `json:"caveats"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels struct{ OS, Arch string } `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// The manifest that the release script writes is what krew accepts, and has the checksums of the archives.
func TestTheManifestForKrew(t *testing.T) {
	folder := t.TempDir()
	sums := map[string]string{}
	archives := map[string]string{"linux-amd64": ".tar.gz", "linux-arm64": ".tar.gz", "windows-amd64": ".zip",
		"darwin-arm64": ".tar.gz"}
	for target, kind := range archives {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "kubectl-serviceproxy-"+target+kind), []byte(target), 0o600))
		sum := sha256.Sum256([]byte(target))
		sums[target] = hex.EncodeToString(sum[:])
	}
	text, err := exec.CommandContext(t.Context(), "../../.ci/release", "--krew", "v0.1.0", folder).Output()
	require.NoError(t, err)
	var p plugin
	require.NoError(t, yaml.UnmarshalStrict(text, &p))
	assert.Equal(t, "krew.googlecontainertools.github.com/v1alpha2", p.APIVersion)
	assert.Equal(t, "Plugin", p.Kind)
	assert.Equal(t, "serviceproxy", p.Metadata.Name)
	assert.Equal(t, "v0.1.0", p.Spec.Version)
	assert.NotEmpty(t, p.Spec.Description)
	assert.Less(t, len(p.Spec.ShortDescription), 50, "krew search shows a line")
	assert.Regexp(t, `[^.]$`, p.Spec.ShortDescription)
	for _, line := range regexp.MustCompile(`(?m)^ *kubectl serviceproxy ([a-z]+)`).FindAllStringSubmatch(
		p.Spec.Description+p.Spec.Caveats, -1) {
		cmd, _, err := (&program{}).command().Find(line[1:])
		require.NoError(t, err)
		assert.Equal(t, line[1], cmd.Name())
	}
	require.Len(t, p.Spec.Platforms, len(sums))
	for _, platform := range p.Spec.Platforms {
		target := platform.Selector.MatchLabels.OS + "-" + platform.Selector.MatchLabels.Arch
		assert.Equal(t, sums[target], platform.SHA256, target)
		assert.Equal(t, "https://github.com/kubernetes-sigs/kube-proxy-lib/releases/download/v0.1.0/kubectl-serviceproxy-"+
			target+archives[target], platform.URI)
		assert.Equal(t, map[bool]string{true: "kubectl-serviceproxy.exe", false: "kubectl-serviceproxy"}[target ==
			"windows-amd64"], platform.Bin)
	}
}

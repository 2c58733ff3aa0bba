package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// descriptor is a reference to a blob of an OCI image.
type descriptor struct {
	MediaType, Digest string
	Size              int
	Platform          struct{ Architecture, OS string }
	Annotations       map[string]string
}

// image is the files of the archive of an OCI image.
type image map[string][]byte

// blob returns what a descriptor refers to, after a look at its digest and size.
func (i image) blob(t *testing.T, d descriptor, mediaType string) []byte {
	t.Helper()
	assert.Equal(t, "application/vnd.oci.image."+mediaType, d.MediaType)
	data, ok := i["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	require.True(t, ok, d.Digest)
	assert.Equal(t, d.Digest, digest(data))
	assert.Len(t, data, d.Size)
	return data
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// untar returns the files of an archive, and their modes.
func untar(t *testing.T, data []byte) (image, map[string]int64) {
	files, modes := image{}, map[string]int64{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, modes
		}
		require.NoError(t, err)
		if header.Typeflag == tar.TypeDir {
			continue
		}
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		files[header.Name], modes[header.Name] = text, header.Mode
	}
}

// The image that the release script makes has for each system the program alone, where Dockerfile.nftables puts it.
func TestTheImageForNftables(t *testing.T) {
	folder := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range []string{"kube-proxy-linux-" + arch, "kube-proxy-linux-" + arch + ".cdx.json",
			"kubectl-serviceproxy-linux-" + arch} {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(name), 0o600))
		}
	}
	build := func() []byte {
		out, err := exec.CommandContext(t.Context(), "../../.ci/release", "--image", "v0.1.0", folder).Output()
		require.NoError(t, err)
		return out
	}
	archive := build()
	assert.Equal(t, digest(archive), digest(build()), "the same files give the same bytes")

	files, _ := untar(t, archive)
	assert.JSONEq(t, `{"imageLayoutVersion": "1.0.0"}`, string(files["oci-layout"]))
	var top, index struct{ Manifests []descriptor }
	require.NoError(t, json.Unmarshal(files["index.json"], &top))
	require.Len(t, top.Manifests, 1)
	assert.Equal(t, map[string]string{"org.opencontainers.image.ref.name": "v0.1.0"}, top.Manifests[0].Annotations)
	require.NoError(t, json.Unmarshal(files.blob(t, top.Manifests[0], "index.v1+json"), &index))
	require.Len(t, index.Manifests, 2)
	for i, arch := range []string{"amd64", "arm64"} {
		assert.Equal(t, arch, index.Manifests[i].Platform.Architecture)
		assert.Equal(t, "linux", index.Manifests[i].Platform.OS)
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		require.NoError(t, json.Unmarshal(files.blob(t, index.Manifests[i], "manifest.v1+json"), &manifest))
		var config struct {
			Architecture, OS string
			Config           struct{ Entrypoint []string }
			RootFS           struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		require.NoError(t, json.Unmarshal(files.blob(t, manifest.Config, "config.v1+json"), &config))
		assert.Equal(t, "linux "+arch, config.OS+" "+config.Architecture)
		dockerfile, err := os.ReadFile("Dockerfile.nftables")
		require.NoError(t, err)
		assert.Contains(t, string(dockerfile), `ENTRYPOINT ["`+config.Config.Entrypoint[0]+`"]`)
		require.Len(t, manifest.Layers, 1)
		unzip, err := gzip.NewReader(bytes.NewReader(files.blob(t, manifest.Layers[0], "layer.v1.tar+gzip")))
		require.NoError(t, err)
		layer, err := io.ReadAll(unzip)
		require.NoError(t, err)
		assert.Equal(t, []string{digest(layer)}, config.RootFS.DiffIDs)
		content, modes := untar(t, layer)
		assert.Equal(t, image{"kube-proxy": []byte("kube-proxy-linux-" + arch)}, content)
		assert.Equal(t, map[string]int64{"kube-proxy": 0o755}, modes)
	}
}

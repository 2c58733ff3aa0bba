package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An archive has every image, each blob has the digest that it is referred to by, and all files are in the one layer.
func TestImages(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "agnhost"), []byte("program"), 0o755))
	require.NoError(t, os.Symlink("agnhost", filepath.Join(root, "link")))
	path := filepath.Join(t.TempDir(), "images.tar")
	require.NoError(t, WriteImages(root, path))
	files := untar(t, path)

	get := func(d descriptor, to any) {
		blob := files["blobs/sha256/"+d.Digest[len("sha256:"):]]
		sum := sha256.Sum256(blob)
		assert.Equal(t, "sha256:"+hex.EncodeToString(sum[:]), d.Digest)
		assert.EqualValues(t, len(blob), d.Size)
		require.NoError(t, json.Unmarshal(blob, to))
	}
	var all index
	require.NoError(t, json.Unmarshal(files["index.json"], &all))
	require.Len(t, all.Manifests, len(images))
	var layer string
	for i, d := range all.Manifests {
		var m manifest
		get(d, &m)
		var config struct {
			Config struct{ Entrypoint, Cmd []string }
			Rootfs struct {
				IDs []string `json:"diff_ids"`
			}
		}
		get(m.Config, &config)
		assert.Equal(t, images[i].Entrypoint, config.Config.Entrypoint)
		require.Len(t, m.Layers, 1)
		layer = m.Layers[0].Digest
		assert.Equal(t, []string{layer}, config.Rootfs.IDs)
	}
	assert.Equal(t, pauseImage, all.Manifests[0].Annotations["io.containerd.image.name"])
	assert.Equal(t, "docker.io/"+dnsImage, all.Manifests[1].Annotations["io.containerd.image.name"])

	layerFile := filepath.Join(t.TempDir(), "layer.tar")
	require.NoError(t, os.WriteFile(layerFile, files["blobs/sha256/"+layer[len("sha256:"):]], 0o644))
	inLayer := untar(t, layerFile)
	assert.Equal(t, "program", string(inLayer["agnhost"]))
	assert.Contains(t, inLayer, "link")
	_, err := tls.X509KeyPair(inLayer["localhost.crt"], inLayer["localhost.key"])
	assert.NoError(t, err, "with which agnhost's porter serves HTTPS")
	tag := string(bytes.TrimSpace(inLayer["var/registry/pause/manifests/testing"]))[len("sha256:"):]
	assert.Contains(t, inLayer, "var/registry/pause/manifests/sha256/"+tag[:2]+"/"+tag+"/data",
		"what agnhost's registry serves")
}

// An image with programs has them in a layer of its own, above the files of all.
func TestAnImageWithAProgram(t *testing.T) {
	root, program := t.TempDir(), filepath.Join(t.TempDir(), "built")
	require.NoError(t, os.WriteFile(program, []byte("program"), 0o600))
	path := filepath.Join(t.TempDir(), "images.tar")
	require.NoError(t, WriteArchive(root, path, []Image{{Name: "registry.example/proxy:test",
		Programs: map[string]string{"/usr/local/bin/proxy": program}}}))
	files := untar(t, path)
	var all index
	require.NoError(t, json.Unmarshal(files["index.json"], &all))
	require.Len(t, all.Manifests, 1)
	var m manifest
	require.NoError(t, json.Unmarshal(files["blobs/sha256/"+all.Manifests[0].Digest[len("sha256:"):]], &m))
	require.Len(t, m.Layers, 2)
	layer := filepath.Join(t.TempDir(), "layer.tar")
	require.NoError(t, os.WriteFile(layer, files["blobs/sha256/"+m.Layers[1].Digest[len("sha256:"):]], 0o644))
	assert.Equal(t, "program", string(untar(t, layer)["usr/local/bin/proxy"]))
}

// untar returns the contents of the files of an archive.
func untar(t *testing.T, path string) map[string][]byte {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[header.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

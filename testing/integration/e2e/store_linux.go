package e2e

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// descriptor, manifest and index are of the specification of OCI images.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// store is a folder of blobs, in the layout of OCI images.
type store struct{ dir string }

func (s store) blobs() string { return filepath.Join(s.dir, "blobs/sha256") }

// add adds a blob, which write writes.
func (s store) add(mediaType string, write func(io.Writer) error) (descriptor, error) {
	blobs := s.blobs()
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return descriptor{}, err
	}
	f, err := os.CreateTemp(blobs, ".new")
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.New()
	if err := errors.Join(write(io.MultiWriter(f, sum)), f.Close()); err != nil {
		return descriptor{}, err
	}
	info, err := os.Stat(f.Name())
	if err != nil {
		return descriptor{}, err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: info.Size()},
		os.Rename(f.Name(), filepath.Join(blobs, digest))
}

func (s store) addJSON(mediaType string, v any) (descriptor, error) {
	return s.add(mediaType, func(w io.Writer) error { return json.NewEncoder(w).Encode(v) })
}

func (s store) addLayer(root string) (descriptor, error) {
	return s.add(layerType, func(w io.Writer) error { return archive(w, root) })
}

// addPrograms adds a layer of an image's own programs, unless it has none.
func (s store) addPrograms(image Image) ([]descriptor, error) {
	if len(image.Programs) == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for at, from := range image.Programs {
		to := filepath.Join(dir, at)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		if err := errors.Join(copyFile(from, to), os.Chmod(to, 0o755)); err != nil {
			return nil, err
		}
	}
	layer, err := s.addLayer(dir)
	return []descriptor{layer}, err
}

// addImage adds the configuration and the manifest of an image.
func (s store) addImage(image Image, layers ...descriptor) (descriptor, error) {
	var digests []string
	for _, layer := range layers {
		digests = append(digests, layer.Digest)
	}
	config, err := s.addJSON(configType, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": image.Entrypoint, "Cmd": image.Command,
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := s.addJSON(manifestType, manifest{SchemaVersion: 2, MediaType: manifestType, Config: config,
		Layers: layers})
	name := image.Name
	if !strings.Contains(strings.Split(name, "/")[0], ".") {
		name = "docker.io/" + name // as kubelet's requests are completed
	}
	d.Annotations = map[string]string{"io.containerd.image.name": name}
	return d, err
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// archive writes the files of a folder, in a fixed order.
func archive(to io.Writer, dir string) error {
	w := tar.NewWriter(to)
	return errors.Join(filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil || info.Mode()&os.ModeSocket != 0 {
			return err
		}
		var link string
		if info.Mode()&os.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(dir, path); err != nil {
			return err
		}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}), w.Close())
}

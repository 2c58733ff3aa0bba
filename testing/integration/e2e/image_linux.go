package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// Image is an image of the cluster: a name, and what its containers run. All have the same files.
type Image struct {
	Name       string
	Entrypoint []string
	Command    []string
	// Programs maps paths in the image to further files of this machine.
	Programs map[string]string
}

const dnsImage = "kube-proxy-lib/coredns:test"

// pauseImage is the name of the image of each pod's first container.
var pauseImage = imageutils.GetE2EImage(imageutils.Pause)

// images are the images of the cluster, by the names that Kubernetes' tests ask for.
var images = []Image{
	{Name: pauseImage, Entrypoint: []string{"/bin/sleep", "infinity"}}, // which is smaller than agnhost
	{Name: dnsImage, Entrypoint: []string{"/coredns"}},
	{Name: imageutils.GetE2EImage(imageutils.Agnhost), Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}},
	{Name: imageutils.GetE2EImage(imageutils.BusyBox), Command: []string{"sh"}},
	{Name: imageutils.GetE2EImage(imageutils.GlibcDnsTesting), Command: []string{"bash"}},
	{Name: imageutils.GetE2EImage(imageutils.Nginx), Command: []string{"nginx", "-g", "daemon off;"}},
	{Name: imageutils.GetE2EImage(imageutils.RegressionIssue74839), Entrypoint: []string{"/regression-issue-74839"}},
	{Name: imageutils.GetE2EImage(imageutils.DistrolessIptables), Command: []string{"sh"}},
}

// WriteImages writes an archive of the cluster's own images, whose files are those of a folder, for [WriteArchive].
func WriteImages(root, to string) error {
	if err := writeRegistry(root); err != nil {
		return fmt.Errorf("the files of agnhost's registry: %w", err)
	}
	if err := writeCertificate(root); err != nil {
		return fmt.Errorf("agnhost's certificate: %w", err)
	}
	return WriteArchive(root, to, images)
}

// WriteArchive writes an archive of images, whose files are those of a folder and their own programs, as `ctr images
// import` reads it.
func WriteArchive(root, to string, images []Image) error {
	dir, err := os.MkdirTemp(filepath.Dir(to), ".images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := store{dir: dir}
	layer, err := s.addLayer(root)
	if err != nil {
		return fmt.Errorf("the files of %s: %w", root, err)
	}
	all := index{SchemaVersion: 2, MediaType: indexType}
	for _, image := range images {
		layers, err := s.addPrograms(image)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		m, err := s.addImage(image, append([]descriptor{layer}, layers...)...)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		all.Manifests = append(all.Manifests, m)
	}
	if err := writeJSON(filepath.Join(dir, "index.json"), all); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, "oci-layout"), map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	out, err := os.Create(to + ".new")
	if err != nil {
		return err
	}
	err = errors.Join(archive(out, dir), out.Close())
	if err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// writeCertificate writes localhost.crt and localhost.key, which agnhost's porter serves HTTPS with.
func writeCertificate(root string) error {
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{
		Host: "127.0.0.1", AlternateIPs: []net.IP{net.IPv6loopback}, MaxAge: 10 * 365 * 24 * time.Hour})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(root, "localhost.crt"), certificate, 0o644),
		os.WriteFile(filepath.Join(root, "localhost.key"), key, 0o644))
}

// writeRegistry writes what agnhost's fake-registry-server serves: the image pause:testing.
func writeRegistry(root string) error {
	registry := filepath.Join(root, "var/registry/pause")
	if err := os.RemoveAll(registry); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "registry")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	if err := os.Link(filepath.Join(root, "agnhost"), filepath.Join(files, "agnhost")); err != nil {
		if err := copyFile(filepath.Join(root, "agnhost"), filepath.Join(files, "agnhost")); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(files, "agnhost"), 0o755); err != nil {
		return err
	}
	s := store{dir: dir}
	layer, err := s.addLayer(files)
	if err != nil {
		return err
	}
	image, err := s.addImage(Image{Name: "pause:testing", Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}},
		layer)
	if err != nil {
		return err
	}
	blobs, err := os.ReadDir(s.blobs())
	if err != nil {
		return err
	}
	for _, blob := range blobs {
		kind := "blobs"
		if "sha256:"+blob.Name() == image.Digest {
			kind = "manifests"
		}
		to := filepath.Join(registry, kind, "sha256", blob.Name()[:2], blob.Name(), "data")
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(s.blobs(), blob.Name()), to); err != nil {
			return err
		}
		if err := os.Chmod(to, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(registry, "manifests/testing"), []byte(image.Digest+"\n"), 0o644)
}

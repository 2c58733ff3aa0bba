package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// doc returns a Service as a document, with a cluster IP that ends in the given number.
func doc(name string, ip string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: " + name + "\nspec:\n  clusterIP: 10.0.0." + ip +
		"\n"
}

const malformedDoc = "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: [\n"

// files returns an fs.FS of names and texts.
func files(namesAndTexts ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(namesAndTexts); i += 2 {
		fsys[namesAndTexts[i]] = &fstest.MapFile{Data: []byte(namesAndTexts[i+1])}
	}
	return fsys
}

func newFilesFS(t *testing.T, fsys fs.FS) *Files {
	t.Helper()
	f, err := NewFilesFS(fsys)
	require.NoError(t, err)
	return f
}

// readOnce returns the objects that Run delivers first, and the malformed documents.
func readOnce(t *testing.T, f *Files, nodeName string) ([]Change, error) {
	changes, malformed, err := f.read(t.Context(), newFileState(nodeName, klog.Background()))
	errs := []error{err}
	for _, m := range malformed {
		errs = append(errs, fmt.Errorf("%v: %w", m.position, m.err))
	}
	return changes, errors.Join(errs...)
}

// newFilesAt returns a source of a path that does not poll, so that tests see the effect of events.
func newFilesAt(t *testing.T, path string) *Files {
	t.Helper()
	f, err := NewFiles(path)
	require.NoError(t, err)
	f.quiet, f.poll = 10*time.Millisecond, time.Hour
	return f
}

// hasIP returns a condition for recorder.wait: the service has the cluster IP that ends so.
func hasIP(r *recorder, name, ip string) func() bool {
	return func() bool {
		s, ok := r.objects[key{services, "default", name}].(*corev1.Service)
		return ok && s.Spec.ClusterIP == "10.0.0."+ip
	}
}

// ip returns the end of the service's cluster IP.
func ip(r *recorder, name string) string {
	s, ok := r.get(key{services, "default", name}).(*corev1.Service)
	if !ok {
		return "none"
	}
	return strings.TrimPrefix(s.Spec.ClusterIP, "10.0.0.")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// replace writes another file and renames it, as careful programs do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+"~", text)
	require.NoError(t, os.Rename(path+"~", path))
}

func TestFilesRefuseBadOptions(t *testing.T) {
	_, err := NewFiles("")
	require.ErrorContains(t, err, "the path is empty")
	_, err = NewFilesFS(nil)
	require.ErrorContains(t, err, "fsys is nil")
}

func TestFilesDeliverEverythingAsOneUpdate(t *testing.T) {
	noLeaks(t)
	cluster, _ := cluster(2, 1)
	f := newFilesFS(t, files(
		"cluster.yaml", cluster,
		"n.json",
		`{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n1"}},{"metadata":{"name":"n2"}}]}`,
		"c.yml", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n",
		"README.md", "not read", ".hidden.yaml", malformedDoc, "below/s.yaml", doc("below", "1"),
	))
	r := newRealTimeRecorder(t)
	start(t, f, "n1", r)
	r.waitSynced()
	want := []string{
		"+endpointslices.discovery.k8s.io default/svc-0-x", "+endpointslices.discovery.k8s.io default/svc-1-x",
		"+nodes n1", "+servicecidrs.networking.k8s.io kubernetes", "+services default/svc-0", "+services default/svc-1",
	}
	require.Equal(t, 1, r.updateCount())
	assert.Equal(t, want, r.update(0))

	changes, err := readOnce(t, f, "n1")
	require.NoError(t, err)
	var inOrder []string
	for _, c := range changes {
		inOrder = append(inOrder, keyOf(c.Object).String())
	}
	assert.Equal(t, []string{
		"services default/svc-0", "services default/svc-1",
		"endpointslices.discovery.k8s.io default/svc-0-x", "endpointslices.discovery.k8s.io default/svc-1-x",
		"nodes n1", "servicecidrs.networking.k8s.io kubernetes",
	}, inOrder)
}

func TestFilesTakeAnEmptyDirectoryForComplete(t *testing.T) {
	noLeaks(t)
	for name, f := range map[string]*Files{
		"an fs.FS": newFilesFS(t, files()), "a directory": newFilesAt(t, t.TempDir()),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRealTimeRecorder(t)
			stop := start(t, f, "n1", r)
			r.waitSynced()
			stop()
			assert.Zero(t, r.updateCount())
			assert.Equal(t, 1, r.syncedCount())
		})
	}
}

func TestFilesSetFSDeliversWhatDiffersAsOneUpdate(t *testing.T) {
	noLeaks(t)
	f := newFilesFS(t, files("1.yaml", doc("same", "1")+doc("changes", "2")+doc("goes", "3"), "2.yaml",
		doc("file-goes", "4")))
	r := newRealTimeRecorder(t)
	start(t, f, "", r)
	r.waitSynced()
	f.SetFS(files("1.yaml", doc("comes", "5")+doc("changes", "22")+doc("same", "1")))
	r.wait("changes", func() bool { return len(r.updates) == 2 })
	assert.Equal(t, []string{
		"+services default/changes", "+services default/comes", "-services default/file-goes", "-services default/goes",
	}, r.update(1))
	assert.Equal(t, "22", ip(r, "changes"))

	f.SetFS(f.fsys) // nothing differs
	f.SetFS(files("1.yaml", doc("same", "1")))
	r.waitFor("services default/same")
	assert.Equal(t, 3, r.updateCount())
	f.SetFS(files("1.json", `{"apiVersion": "v1", "kind": "List", "items": []}`))
	r.waitFor()
	assert.Equal(t, 1, r.syncedCount())
}

func TestFilesSetFSReadsTheSameFSAgain(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	f := newFilesFS(t, os.DirFS(dir))
	r := newRealTimeRecorder(t)
	start(t, f, "", r)
	r.waitSynced()
	r.onUpdate = func() { // while the source is busy, SetFS does not wait
		write(t, filepath.Join(dir, "b.yaml"), doc("b", "1"))
		f.SetFS(os.DirFS(dir))
		f.SetFS(os.DirFS(dir))
	}
	write(t, filepath.Join(dir, "a.yaml"), doc("a", "1"))
	f.SetFS(os.DirFS(dir))
	r.waitFor("services default/a", "services default/b")
}

func TestFilesUseTheLastOfSeveralDocumentsOfAnObject(t *testing.T) {
	noLeaks(t)
	f := newFilesFS(t, files("1.yaml", doc("a", "1")+doc("a", "2"), "2.yaml", doc("a", "3")))
	r := newRealTimeRecorder(t)
	_, logs := startLogged(t, f, "", r)
	r.waitSynced()
	assert.Equal(t, "3", ip(r, "a"))
	assert.Equal(t, 1, r.updateCount())
	assert.Contains(t, logs(), `object="services default/a" unused="1.yaml: document 1" used="1.yaml: document 2"`)
	assert.Contains(t, logs(), `unused="1.yaml: document 2" used="2.yaml: document 1"`)

	// Once it is deleted, the definition that it overrode is used, although its text has not changed since the first
	// reading.
	f.SetFS(files("1.yaml", doc("a", "1")+doc("a", "2")))
	r.wait("second", hasIP(r, "a", "2"))
	f.SetFS(files("1.yaml", doc("a", "1")))
	r.wait("first", hasIP(r, "a", "1"))
}

func TestFilesUseWellFormedDocumentsTheFirstTime(t *testing.T) {
	noLeaks(t)
	f := newFilesFS(t, files("1.yaml", doc("a", "1")+malformedDoc+doc("b", "1"), "2.yaml", doc("c", "1")))
	r := newRealTimeRecorder(t)
	_, logs := startLogged(t, f, "", r)
	r.waitSynced()
	assert.Equal(t, []string{"services default/a", "services default/b", "services default/c"}, r.atSynced)
	assert.Contains(t, logs(), `position="1.yaml: document 2"`)

	changes, err := readOnce(t, f, "")
	assert.Len(t, changes, 3)
	require.ErrorContains(t, err, "1.yaml: document 2: ")
}

func TestFilesKeepTheLastGoodStateOfWhatIsMalformed(t *testing.T) {
	noLeaks(t)
	good := files("1.yaml", doc("a", "1")+doc("b", "1")+doc("c", "1"), "2.yaml", doc("d", "1")+doc("e", "1"))
	f := newFilesFS(t, good)
	r := newRealTimeRecorder(t)
	start(t, f, "", r)
	r.waitSynced()

	// b is malformed, c is missing, a and f are good; another file goes on as usual.
	f.SetFS(files("1.yaml", doc("a", "2")+malformedDoc+doc("f", "1"), "2.yaml", doc("e", "2")))
	r.wait("changes", func() bool { return len(r.updates) == 2 })
	assert.Equal(t, []string{
		"+services default/a", "+services default/e", "+services default/f", "-services default/d",
	}, r.update(1))
	assert.Equal(t, "1", ip(r, "b"))
	assert.Equal(t, "1", ip(r, "c"))

	// Once the file is good again, objects that it lacks are deleted, and b turns out to be unchanged.
	f.SetFS(files("1.yaml", doc("a", "2")+doc("b", "1")+doc("f", "1"), "2.yaml", doc("e", "2")))
	r.wait("deletion", func() bool { return len(r.updates) == 3 })
	assert.Equal(t, []string{"-services default/c"}, r.update(2))

	// Wholly malformed, and then deleted: a file that does not exist is not malformed.
	f.SetFS(files("1.yaml", "}", "2.yaml", doc("e", "3")))
	r.wait("e", hasIP(r, "e", "3"))
	assert.Equal(t, "2", ip(r, "a"))
	f.SetFS(files("2.yaml", doc("e", "3")))
	r.waitFor("services default/e")
}

func TestFilesDoNotFallBackToWhatAMalformedFileOverrides(t *testing.T) {
	noLeaks(t)
	f := newFilesFS(t, files("1.yaml", doc("a", "1"), "2.yaml", doc("a", "2"), "3.yaml", ""))
	r := newRealTimeRecorder(t)
	start(t, f, "", r)
	r.waitSynced()
	f.SetFS(files("1.yaml", doc("a", "11"), "2.yaml", malformedDoc, "3.yaml", doc("b", "1")))
	r.waitFor("services default/a", "services default/b")
	assert.Equal(t, "2", ip(r, "a"))
	f.SetFS(files("1.yaml", doc("a", "11"), "2.yaml", malformedDoc, "3.yaml", doc("a", "3")))
	r.wait("a later file counts", hasIP(r, "a", "3"))
}

func TestFilesThatCannotBeReadAreLikeMalformedOnes(t *testing.T) {
	noLeaks(t)
	broken := brokenFS{files("1.yaml", doc("a", "1"), "2.yaml", doc("b", "1")), "1.yaml"}
	f := newFilesFS(t, broken.MapFS)
	r := newRealTimeRecorder(t)
	_, logs := startLogged(t, f, "", r)
	r.waitSynced()
	f.SetFS(brokenFS{files("1.yaml", "", "2.yaml", doc("b", "2")), "1.yaml"})
	r.wait("b", hasIP(r, "b", "2"))
	assert.Equal(t, []string{"services default/a", "services default/b"}, r.names())
	assert.Contains(t, logs(), `position="1.yaml"`)
	_, err := readOnce(t, newFilesFS(t, broken), "")
	require.EqualError(t, err, "1.yaml: input/output error")
}

// brokenFS cannot read one of its files.
type brokenFS struct {
	fstest.MapFS
	file string
}

func (b brokenFS) Open(name string) (fs.File, error) {
	if name == b.file {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("input/output error")}
	}
	return b.MapFS.Open(name)
}

func (b brokenFS) ReadFile(name string) ([]byte, error) {
	if _, err := b.Open(name); err != nil {
		return nil, err
	}
	return b.MapFS.ReadFile(name)
}

func TestFilesFollowADirectory(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.yaml"), doc("a", "1"))
	r := newRealTimeRecorder(t)
	start(t, newFilesAt(t, dir), "", r)
	r.waitSynced()
	write(t, filepath.Join(dir, "2.yaml"), doc("b", "1"))
	r.waitFor("services default/a", "services default/b")
	write(t, filepath.Join(dir, "1.yaml"), doc("a", "2"))
	r.wait("written", hasIP(r, "a", "2"))
	replace(t, filepath.Join(dir, "1.yaml"), doc("a", "3"))
	r.wait("renamed", hasIP(r, "a", "3"))
	require.NoError(t, os.Remove(filepath.Join(dir, "2.yaml")))
	r.waitFor("services default/a")
}

func TestFilesFollowAFile(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster") // any name will do
	write(t, path, doc("a", "1"))
	write(t, filepath.Join(dir, "other.yaml"), doc("other", "1"))
	r := newRealTimeRecorder(t)
	start(t, newFilesAt(t, path), "", r)
	r.waitSynced()
	assert.Equal(t, []string{"services default/a"}, r.atSynced)
	replace(t, path, doc("a", "2"))
	r.wait("renamed", hasIP(r, "a", "2"))
	write(t, path, doc("a", "3"))
	r.wait("written", hasIP(r, "a", "3"))
	require.NoError(t, os.Rename(path, path+".bak")) // as some editors do
	write(t, path, doc("a", "4"))
	r.wait("created", hasIP(r, "a", "4"))
}

func TestFilesFollowTheSymbolicLinksOfConfigMapVolumes(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	volume := func(version string, namesAndTexts ...string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "..v"+version), 0o755))
		for i := 0; i < len(namesAndTexts); i += 2 {
			write(t, filepath.Join(dir, "..v"+version, namesAndTexts[i]), namesAndTexts[i+1])
		}
		symlink(t, "..v"+version, filepath.Join(dir, "..data_tmp"))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	volume("1", "a.yaml", doc("a", "1"), "b.yaml", doc("b", "1"))
	symlink(t, "..data/a.yaml", filepath.Join(dir, "a.yaml"))
	symlink(t, "..data/b.yaml", filepath.Join(dir, "b.yaml"))
	whole, one := newRealTimeRecorder(t), newRealTimeRecorder(t)
	start(t, newFilesAt(t, dir), "", whole)
	start(t, newFilesAt(t, filepath.Join(dir, "a.yaml")), "", one)
	whole.waitFor("services default/a", "services default/b")
	one.waitFor("services default/a")
	volume("2", "a.yaml", doc("a", "2"), "b.yaml", doc("b", "2"))
	one.wait("swapped", hasIP(one, "a", "2"))
	whole.wait("swapped", hasIP(whole, "b", "2"))
	volume("3", "a.yaml", doc("a", "3")) // the link b.yaml leads nowhere now
	whole.waitFor("services default/a")
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		if runtime.GOOS == "windows" {
			t.Skip("symbolic links need a privilege here: ", err)
		}
		t.Fatal(err)
	}
	if _, err := os.Lstat(at); err != nil && runtime.GOOS == "windows" {
		t.Skip("a symbolic link was made, and is not there, as under Wine 8: ", err)
	}
}

func TestFilesWaitForAPathToAppearAndSurviveItsLoss(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "cluster")
	f := newFilesAt(t, path)
	if runtime.GOOS == "windows" {
		f.poll = 10 * time.Millisecond // it does not report that a watched directory is renamed
	}
	r := newRealTimeRecorder(t)
	stop, logs := startLogged(t, f, "", r)
	for !strings.Contains(logs(), "Cannot read the cluster's files") {
		runtime.Gosched()
	}
	assert.Zero(t, r.syncedCount())
	staged := path + ".staged"
	require.NoError(t, os.Mkdir(staged, 0o755))
	write(t, filepath.Join(staged, "1.yaml"), doc("a", "1"))
	require.NoError(t, os.Rename(staged, path))
	r.waitSynced()
	assert.Equal(t, []string{"services default/a"}, r.atSynced)

	require.NoError(t, os.Rename(path, staged)) // away
	for strings.Count(logs(), "Cannot read the cluster's files") < 2 {
		runtime.Gosched()
	}
	assert.Equal(t, 1, r.updateCount())
	write(t, filepath.Join(staged, "1.yaml"), doc("a", "2"))
	require.NoError(t, os.Rename(staged, path)) // back
	r.wait("back", hasIP(r, "a", "2"))
	write(t, filepath.Join(path, "1.yaml"), doc("a", "3"))
	r.wait("still followed", hasIP(r, "a", "3"))
	stop()
	assert.Equal(t, 1, r.syncedCount())
}

func TestFilesSayOnceThatThereIsNothingToRead(t *testing.T) {
	noLeaks(t)
	opened := make(chan struct{})
	f := newFilesFS(t, failingFS(opened))
	r := newRealTimeRecorder(t)
	stop, logs := startLogged(t, f, "", r)
	for range 3 {
		<-opened
		f.SetFS(failingFS(opened))
	}
	<-opened
	f.SetFS(files("a.yaml", doc("a", "1")))
	r.waitSynced()
	f.SetFS(failingFS(opened))
	<-opened
	f.SetFS(files("a.yaml", doc("a", "2")))
	r.wait("back", hasIP(r, "a", "2"))
	stop()
	assert.Equal(t, 2, countIn(logs(), "Cannot read the cluster's files"), "once each time")
}

// failingFS is an fs.FS that cannot be read, and signals each attempt.
type failingFS chan struct{}

func (f failingFS) Open(string) (fs.File, error) {
	f <- struct{}{}
	return nil, fs.ErrPermission
}

func TestFilesLookRegularlyWhereTheSystemDoesNotTell(t *testing.T) {
	noLeaks(t)
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(elsewhere, "target"), doc("a", "1"))
	symlink(t, filepath.Join(elsewhere, "target"), filepath.Join(dir, "a.yaml"))
	f := newFilesAt(t, dir)
	f.poll = 10 * time.Millisecond
	r := newRealTimeRecorder(t)
	start(t, f, "", r)
	r.waitSynced()
	write(t, filepath.Join(elsewhere, "target"), doc("a", "222")) // not in a directory that is watched
	r.wait("changed", hasIP(r, "a", "222"))
}

func TestFilesRefuseAPathThatIsNeitherFileNorDirectory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no such device")
	}
	f, err := NewFiles(os.DevNull)
	require.NoError(t, err)
	_, err = readOnce(t, f, "")
	require.ErrorContains(t, err, "neither a regular file nor a directory")
}

func TestFilesOfADirectoryAreItsFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yaml"), doc("a", "2"))
	write(t, filepath.Join(dir, "a.yaml"), doc("a", "1"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "directory.yaml"), 0o755))
	symlink(t, "directory.yaml", filepath.Join(dir, "link-to-directory.yaml"))
	symlink(t, "nowhere", filepath.Join(dir, "link-to-nowhere.yaml"))
	f, err := NewFiles(dir)
	require.NoError(t, err)
	changes, err := readOnce(t, f, "")
	require.NoError(t, err)
	require.Equal(t, []string{"+services default/a"}, changeNames(changes))
	assert.Equal(t, "10.0.0.2", changes[0].Object.(*corev1.Service).Spec.ClusterIP)

	symlink(t, "circle.yaml", filepath.Join(dir, "circle.yaml"))
	changes, err = readOnce(t, f, "")
	require.ErrorContains(t, err, filepath.Join(dir, "circle.yaml")+": ")
	assert.Len(t, changes, 1)
}

func TestFilesDropFieldsThatHaveNoSay(t *testing.T) {
	text := "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  labels: {l: x}\n  finalizers: [f]\n  " +
		"managedFields: [{manager: m}]\n"
	changes, err := readOnce(t, newFilesFS(t, files("a.yaml", text)), "")
	require.NoError(t, err)
	require.Len(t, changes, 1)
	assert.Empty(t, changes[0].Object.GetManagedFields())
	assert.Empty(t, changes[0].Object.GetFinalizers())
	assert.Equal(t, map[string]string{"l": "x"}, changes[0].Object.GetLabels())
}

func TestFilesRunAgain(t *testing.T) {
	noLeaks(t)
	f := newFilesFS(t, files("a.yaml", doc("a", "1")+"---\napiVersion: v1\nkind: NodeList\nitems:\n- metadata: "+
		"{name: n1}\n- metadata: {name: n2}\n"))
	first, atOnce := newRealTimeRecorder(t), newRealTimeRecorder(t)
	stop := start(t, f, "n1", first)
	start(t, f, "n2", atOnce)
	first.waitSynced()
	atOnce.waitSynced()
	assert.Equal(t, []string{"nodes n1", "services default/a"}, first.atSynced)
	assert.Equal(t, []string{"nodes n2", "services default/a"}, atOnce.atSynced)
	stop()
	assert.Len(t, f.reloads, 1)
	f.SetFS(files("b.yaml", doc("b", "1")))
	atOnce.waitFor("services default/b")
	again := newRealTimeRecorder(t)
	start(t, f, "n1", again)
	again.waitSynced()
	assert.Equal(t, []string{"services default/b"}, again.atSynced)
}

func TestFilesEndWhileReading(t *testing.T) {
	noLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	fsys := &cancelFS{MapFS: files("1.yaml", doc("a", "1"), "2.yaml", doc("b", "1")), cancel: cancel}
	r := newRealTimeRecorder(t)
	require.NoError(t, newFilesFS(t, fsys).Run(ctx, "", r))
	assert.Zero(t, r.updateCount())
	assert.Zero(t, r.syncedCount())
	assert.Equal(t, 1, fsys.reads)
}

// cancelFS ends a context when a file is read.
type cancelFS struct {
	fstest.MapFS
	cancel func()
	reads  int
}

func (c *cancelFS) ReadFile(name string) ([]byte, error) {
	c.cancel()
	c.reads++
	return c.MapFS.ReadFile(name)
}

func TestFilesDecodeOnlyWhatHasChanged(t *testing.T) {
	var documents []string
	for i := range 20 {
		documents = append(documents, doc(fmt.Sprint("svc-", i), "1"))
	}
	text := strings.Join(documents, "")
	logger, _ := testLogger(t)
	s := newFileState("", logger)
	read := func(text string) (decoded int, changes []string) {
		s.parser.begin()
		s.parser.file(t.Context(), "f.yaml", []byte(text))
		for _, f := range s.parser.found {
			if f.object != nil {
				decoded++
			}
		}
		return decoded, changeNames(s.changes())
	}
	decoded, changes := read(text)
	assert.Equal(t, 20, decoded)
	assert.Len(t, changes, 20)
	decoded, changes = read(strings.Replace(text, documents[7], doc("svc-7", "99"), 1))
	assert.Equal(t, 1, decoded)
	assert.Equal(t, []string{"+services default/svc-7"}, changes)
	decoded, changes = read(text + doc("a", "1"))
	assert.Equal(t, 2, decoded)
	assert.Equal(t, []string{"+services default/a", "+services default/svc-7"}, changes)

	// If a List has changed, all of it is decoded, but only the changes are delivered.
	list, _ := cluster(20, 2)
	s = newFileState("", logger)
	for range 2 {
		decoded, _ = read(list)
	}
	assert.Zero(t, decoded)
	_, changes = read(strings.Replace(list, "10.0.7.1\n", "10.0.7.99\n", 1))
	assert.Equal(t, []string{"+services default/svc-7"}, changes)
}

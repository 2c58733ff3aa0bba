package remote

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const (
	keptVersion = 1
	maxKept     = 64 << 20 // bytes
	maxSkew     = time.Minute
	tooOldTemp  = 10 * time.Minute // a younger temporary file may still be being written
)

// keptState is a complete state of a view. It does not change.
type keptState struct {
	at       time.Time // when a server last confirmed that it is the newest
	clusters []string  // the texts of Keep.Cluster, sorted
	seen     wire.Mark // how new it is
	node     *model.Node
	shared   *sink.Snapshot
	own      map[model.ServiceName]*localstate.NodePart
}

func (s *keptState) same(o *keptState) bool {
	return o != nil && s.seen == o.seen && s.shared == o.shared && s.node.Equal(o.node) && maps.Equal(s.own, o.own) &&
		slices.Equal(s.clusters, o.clusters)
}

// keptHeader is the first line of a file, in JSON. It is followed by messages, each after its length: a Hello, which
// says whose state it is, and the Updates of a RESET. The last 32 bytes are the SHA-256 of everything before them.
type keptHeader struct {
	Version  int       `json:"keptStateVersion"`
	Clusters []string  `json:"clusters,omitempty"`
	Node     string    `json:"node"`
	At       time.Time `json:"at"`
	// Seen is how new the state is; zero: not known, as in files of older versions.
	Seen wire.Mark `json:"seen,omitzero"`
}

// clusters returns the texts of Cluster, sorted.
func (k *Keep) clusters() ([]string, error) {
	if k.Cluster == nil {
		return nil, nil
	}
	all, err := k.Cluster()
	if err != nil {
		return nil, fmt.Errorf("cannot tell the cluster: %w", err)
	}
	return slices.Compact(slices.Sorted(slices.Values(all))), nil
}

// checkCluster returns an error unless a file belongs to this cluster.
func (k *Keep) checkCluster(of []string) error {
	ours, err := k.clusters()
	if err != nil {
		return err
	}
	same := len(of) == 0 && len(ours) == 0
	if !same && !slices.ContainsFunc(of, func(text string) bool { return slices.Contains(ours, text) }) {
		return fmt.Errorf("belongs to another cluster: %s", wire.FirstOf(fmt.Sprintf("%q", of)))
	}
	return nil
}

// encode returns the content of a file.
func (k *Keep) encode(hello *remotev1.Hello, s *keptState) ([]byte, error) {
	header, err := json.Marshal(keptHeader{Version: keptVersion, Clusters: s.clusters, Node: hello.Node, At: s.at.UTC(),
		Seen: s.seen})
	if err != nil {
		return nil, err
	}
	var w wire.Chunks
	for c := range s.shared.ChangesSince(nil) {
		w.Change(c)
	}
	w.Own(maps.All(s.own))
	frames := append(w.Done(), wire.Encode(&remotev1.Update{Node: wire.EncodeNode(s.node)}))
	out := append(header, '\n')
	for _, f := range append([]*wire.Frame{wire.Encode(hello)}, frames...) {
		if err := f.Err(); err != nil {
			return nil, err
		}
		out = protowire.AppendBytes(out, f.Bytes())
	}
	if len(out)+sha256.Size > maxKept {
		return nil, fmt.Errorf("the state has %d bytes, more than %d", len(out), maxKept)
	}
	sum := sha256.Sum256(out)
	return append(out, sum[:]...), nil
}

// decode is the reverse of encode. It returns an error if the state must not be used at the given time.
func (k *Keep) decode(b []byte, hello *remotev1.Hello, now time.Time) (keptHeader, wire.Batch, error) {
	var batch wire.Batch
	header, messages, err := k.open(b, hello, now)
	if err != nil {
		return header, batch, err
	}
	var decoder wire.Decoder
	var unzip decompressor
	for _, message := range messages {
		if _, err := decoder.Update(message, unzip.decompress, &batch); err != nil {
			return header, batch, fmt.Errorf("damaged: %w", err)
		}
	}
	if err := decoder.Err(); err != nil {
		return header, batch, fmt.Errorf("damaged: %w", err)
	}
	return header, batch, nil
}

// open returns the header of a file, and the messages with the state. It returns an error if the state must not be used
// at the given time.
func (k *Keep) open(b []byte, hello *remotev1.Hello, now time.Time) (header keptHeader, state [][]byte, err error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	if err := json.Unmarshal(line, &header); err != nil {
		return header, nil, fmt.Errorf("damaged: %w", err)
	}
	if header.Version != keptVersion {
		return header, nil, fmt.Errorf("has version %d, not %d", header.Version, keptVersion)
	}
	end := len(b) - sha256.Size
	if end < len(line)+1 || sha256.Sum256(b[:end]) != [sha256.Size]byte(b[end:]) {
		return header, nil, errors.New("damaged: the checksum is wrong")
	}
	if err := k.checkCluster(header.Clusters); err != nil {
		return header, nil, err
	}
	age := now.Sub(header.At)
	switch {
	case header.Node != hello.Node:
		return header, nil, fmt.Errorf("belongs to another node: %q", header.Node)
	case age < -maxSkew:
		return header, nil, fmt.Errorf("its time is in the future: %v", header.At)
	case age > k.MaxAge:
		return header, nil, fmt.Errorf("too old: it dates from %v", header.At)
	}
	var messages [][]byte
	for rest := b[len(line)+1 : end]; len(rest) > 0; {
		message, n := protowire.ConsumeBytes(rest)
		if n < 0 {
			return header, nil, fmt.Errorf("damaged: %w", protowire.ParseError(n))
		}
		messages, rest = append(messages, message), rest[n:]
	}
	var of remotev1.Hello
	if len(messages) == 0 {
		return header, nil, errors.New("damaged: it is empty")
	}
	if err := proto.Unmarshal(messages[0], &of); err != nil {
		return header, nil, fmt.Errorf("damaged: %w", err)
	}
	if !proto.Equal(&of, hello) {
		return header, nil, errors.New("belongs to a node with other options")
	}
	return header, messages[1:], nil
}

// read returns the content of the file.
func (k *Keep) read() ([]byte, error) {
	before, err := os.Lstat(k.File)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() { // a link may point anywhere, and a pipe never ends
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(k.File)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxKept+1))
	if err == nil && len(b) > maxKept {
		err = fmt.Errorf("has more than %d bytes", maxKept)
	}
	return b, err
}

// write replaces the file. Whenever the process is killed, or the machine loses power, the old or the new file remains.
func (k *Keep) write(b []byte) (err error) {
	dir, pattern := filepath.Dir(k.File), filepath.Base(k.File)+".*.new"
	if left, err := filepath.Glob(filepath.Join(dir, pattern)); err == nil { // left by processes that were killed
		for _, name := range left {
			if info, err := os.Lstat(name); err == nil && time.Since(info.ModTime()) > tooOldTemp {
				_ = os.Remove(name)
			}
		}
	}
	f, err := os.CreateTemp(dir, pattern) // its mode is 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), k.File); err != nil {
		return err
	}
	if d, err := os.Open(dir); err == nil { // so that the new name is on the disk; not every system can do it
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

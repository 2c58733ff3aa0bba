package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// said is a message of a recorded session, as it was on the wire, and its sender.
type said struct{ Client, Server []byte }

// player is a server that sends the server's messages of a recorded session, and expects the client's.
type player struct {
	remotev1.UnimplementedBrainServer
	t       *testing.T
	streams [][]said
	end     func()
}

func (p *player) Watch(stream grpc.BidiStreamingServer[remotev1.Request, remotev1.Update]) error {
	if len(p.streams) == 0 {
		p.end()
		return nil
	}
	now := p.streams[0]
	p.streams = p.streams[1:]
	for _, m := range now {
		if m.Server != nil {
			u := &remotev1.Update{}
			if err := proto.Unmarshal(m.Server, u); err != nil {
				return err
			}
			if u.HeartbeatMillis > 0 { // 30 in the recording: a client on a busy machine would leave the server
				u.HeartbeatMillis = uint32(testTimeout.Milliseconds())
			}
			if err := stream.Send(u); err != nil {
				return err
			}
			continue
		}
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		want := &remotev1.Request{}
		if err := proto.Unmarshal(m.Client, want); err != nil {
			return err
		}
		for _, r := range []*remotev1.Request{got, want} { // their order is undefined
			slices.SortFunc(r.GetDigests().GetServices(),
				func(a, b *remotev1.ServiceDigest) int { return cmp.Compare(a.Name, b.Name) })
		}
		assert.True(p.t, proto.Equal(want, got), "want %v\ngot  %v", want, got)
	}
	return errors.New("the recorded stream ends here")
}

// TestAServerOfVersion01IsUnderstood replays a session of version 0.1 (its bytes stay as they are): a full state, a
// change, a connection that is resumed, and one to another replica that compares digests. The client accepts all of it,
// and sends what the client of that version sent: its digests equal those of a server of that version.
func TestAServerOfVersion01IsUnderstood(t *testing.T) {
	text, err := os.ReadFile("testdata/session-0.1.json")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(quiet(t))
	p := &player{t: t, end: cancel}
	require.NoError(t, json.Unmarshal(text, &p.streams))
	require.Len(t, p.streams, 3)
	target := socket(t)
	server := grpc.NewServer(grpc.ForceServerCodecV2(encoding.GetCodecV2("proto")))
	remotev1.RegisterBrainServer(server, p)
	ended := make(chan error, 1)
	ln := listen(t, target)
	go func() { ended <- server.Serve(ln) }()
	state := stateN1
	state.DetectLocal.NodeCIDR = true
	feed, err := NewFeed(Options{Targets: []string{target}, State: state})
	require.NoError(t, err)
	rec := &sink.Recorder{}
	require.NoError(t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec, MinInterval: -1}))
	server.Stop()
	require.NoError(t, <-ended)
	assert.Empty(t, p.streams)
	assert.Empty(t, rec.Violations())
	assert.Len(t, rec.Services(), 4)
	assert.Len(t, rec.Services()[name("rich")].Ports, 2)
	assert.Len(t, rec.Endpoints(), 6)
}

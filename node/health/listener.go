package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// listener is one open address and port.
type listener struct {
	address string
	server  *http.Server
	stop    func() bool   // forgets the context
	done    chan struct{} // closed when the goroutine has ended
}

// The clients are load balancers: their requests are small and come from nearby.
const (
	requestTimeout = 10 * time.Second
	idleTimeout    = 2 * time.Minute
)

// listen opens an address and serves it.
func (s *Services) listen(ctx context.Context, i *instance, key listenKey) (*listener, error) {
	network := "tcp4"
	if key.family == model.IPv6 {
		network = "tcp6" // on the unspecified address, IPv6 only
	}
	address := netip.AddrPortFrom(key.addr, key.port).String()
	socket, err := s.opts.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	l := &listener{
		address: address,
		server: &http.Server{
			Handler:     s.handler(i, key.family),
			ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
			BaseContext: func(net.Listener) context.Context { return ctx },
		},
		done: make(chan struct{}),
	}
	l.stop = context.AfterFunc(ctx, func() { _ = l.server.Close() })
	go func() {
		err := l.server.Serve(socket)
		if !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "A health check server stopped; restarting it at the next Sync",
				"service", i.name, "address", address)
			s.retries.later(i.name)
		} else if ctx.Err() != nil {
			s.retries.add(i.name) // a Sync with another context opens it again
		}
		close(l.done)
	}()
	return l, nil
}

// ended reports whether the listener has stopped, because it failed or because the context has ended.
func (l *listener) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// close stops listening, cuts the connections, and waits for the goroutine.
func (l *listener) close() {
	l.stop()
	_ = l.server.Close()
	<-l.done
}

// answer is the body of an answer.
type answer struct {
	Service             model.ServiceName `json:"service"`
	LocalEndpoints      int               `json:"localEndpoints"`
	ServiceProxyHealthy bool              `json:"serviceProxyHealthy"`
}

// handler answers for a service in a family.
func (s *Services) handler(i *instance, f model.Family) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a := answer{
			Service:             i.name,
			LocalEndpoints:      int(i.localEndpoints.At(f).Load()),
			ServiceProxyHealthy: s.opts.Healthy(),
		}
		code := http.StatusServiceUnavailable
		if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(a.LocalEndpoints))
		body, _ := json.MarshalIndent(a, "", "\t") // no value of the type fails
		writeJSON(w, code, body)
	})
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error means that the client is gone
}

package watch

import (
	"context"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// missingRetry is how long to wait before retrying a kind of object that the server does not have. It is long because
// every node retries.
const missingRetry = 10 * time.Minute

// run keeps store up to date until ctx ends. client reports whether it can stream lists; fakes cannot.
func (in input) run(ctx context.Context, client any, store *nameStore, calls *calls) {
	logger := klog.FromContext(ctx).WithValues("resource", in.kind.String())
	ctx = klog.NewContext(ctx, logger)
	clk := contextClock{ctx: ctx}
	lw := *in.lw
	lw.ListWithContextFunc = trimmedList(calls, store, in.lw.ListWithContextFunc)
	lw.WatchFuncWithContext = store.noted(in.lw.WatchFuncWithContext)
	r := cache.NewReflectorWithOptions(
		cache.ToListWatcherWithWatchListSemantics(&lw, client),
		newObject(in.kind),
		store,
		cache.ReflectorOptions{Name: "watch/" + in.kind.String(), Clock: clk},
	)
	failed := failures{outage: store.outage}
	without := "" // the last logged reason for going on without objects of this kind
	// The pauses are those of the reflector's Run, which is not used because it does not return its errors.
	backoff := wait.Backoff{
		Duration: 800 * time.Millisecond,
		Cap:      30 * time.Second,
		Steps:    int(math.Ceil(30 / 0.8)),
		Factor:   2,
		Jitter:   1,
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { store.silence.run(ctx, in.lw.ListWithContextFunc) })
	defer store.stream.ended()
	_ = backoff.DelayWithReset(clk, 2*time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := r.ListAndWatchWithContext(ctx)
		switch {
		case ctx.Err() != nil:
		case in.kind == serviceCIDRs && apierrors.IsNotFound(err):
			if without != "missing" {
				logger.Info("The API server does not have this kind of object; continuing without", "err", err)
			}
			without = "missing"
			_ = store.Replace(nil, "")
			<-clk.After(missingRetry)
		case in.optional && apierrors.IsForbidden(err):
			switch {
			case without == "forbidden":
			case in.kind == nodes:
				logger.Error(err, "Not allowed to list and watch: add this resource to the program's RBAC rules. "+
					"Continuing as if there were none. Trying again")
			default:
				logger.Error(err, "Not allowed to list and watch: add this resource to the program's RBAC rules. "+
					"Continuing without; traffic to unallocated service addresses is not dropped. Trying again")
			}
			without = "forbidden"
			store.heard("")
			store.complete() // objects from a time when listing was allowed stay
		default:
			without = ""
			failed.note(logger, err)
		}
		return false, nil //nolint:nilerr // it has been logged, and it is tried again
	})
}

// trimmedList wraps a list function: it trims items page by page, and no call begins or continues after Run has
// returned. A list that follows a silence has no version.
func trimmedList(calls *calls, store *nameStore, list cache.ListWithContextFunc) cache.ListWithContextFunc {
	return func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		if !calls.begin() {
			return nil, context.Canceled
		}
		defer calls.done()
		store.streamed.Store(false)
		_ = store.mayStream(ctx) // a streamed list that was given up may end with an error
		if opts.Continue == "" && store.silence.listsAnew() {
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
		}
		page, err := list(ctx, opts)
		if err != nil {
			return nil, err
		}
		err = meta.EachListItem(page, func(obj runtime.Object) error {
			trim(obj, store.keep)
			return nil
		})
		return page, err
	}
}

// contextClock is the real clock, except that waiting ends with the context. A reflector that meets a refused
// connection while it streams a list sleeps up to a minute without looking at its context, with After (client-go
// v0.36.3) or with a timer (v0.35.10).
type contextClock struct {
	clock.RealClock
	ctx context.Context
}

// After returns a channel that receives the time after d, or when the context ends.
func (c contextClock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// NewTimer returns a timer that fires after d, or when the context ends.
func (c contextClock) NewTimer(d time.Duration) clock.Timer {
	t := &contextTimer{Timer: time.NewTimer(d), ctx: c.ctx}
	t.hook()
	return t
}

// contextTimer is a timer of a contextClock. Like every timer it is used by one goroutine at a time.
type contextTimer struct {
	*time.Timer
	ctx    context.Context
	unhook func() bool // from the context
}

// hook makes the timer fire when the context ends, at once if it has ended.
func (t *contextTimer) hook() {
	t.unhook = context.AfterFunc(t.ctx, func() { t.Timer.Reset(0) })
}

func (t *contextTimer) C() <-chan time.Time { return t.Timer.C }

// Stop keeps the timer from firing, and reports what [time.Timer.Stop] does.
func (t *contextTimer) Stop() bool {
	t.unhook()
	return t.Timer.Stop()
}

// Reset restarts the timer, and reports what [time.Timer.Reset] does.
func (t *contextTimer) Reset(d time.Duration) bool {
	t.unhook()
	running := t.Timer.Reset(d)
	t.hook()
	return running
}

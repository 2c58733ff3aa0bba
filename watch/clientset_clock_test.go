package watch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// Waiting on a contextClock ends with the context, however client-go waits.
func TestWaitingEndsWithTheContext(t *testing.T) {
	for name, wait := range map[string]func(c contextClock){
		"After":   func(c contextClock) { <-c.After(time.Minute) },
		"a timer": func(c contextClock) { <-c.NewTimer(time.Minute).C() },
		"a timer that has been reset": func(c contextClock) {
			x := c.NewTimer(time.Hour)
			x.Reset(time.Minute)
			<-x.C()
		},
		"a timer that has been used": func(c contextClock) {
			x := c.NewTimer(0)
			<-x.C()
			x.Reset(time.Minute)
			<-x.C()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				wait(contextClock{ctx: t.Context()})
				assert.Equal(t, time.Minute, time.Since(start), "without an end of the context")

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start = time.Now()
				wait(contextClock{ctx: ctx})
				assert.Equal(t, time.Second, time.Since(start), "with one")
				start = time.Now()
				wait(contextClock{ctx: ctx})
				assert.Zero(t, time.Since(start), "after it")
			})
		})
	}
}

func TestAStoppedTimerDoesNotFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		x := contextClock{ctx: ctx}.NewTimer(time.Minute)
		assert.True(t, x.Stop())
		assert.False(t, x.Stop())
		cancel()
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		assert.Empty(t, x.C())

		x = contextClock{ctx: t.Context()}.NewTimer(time.Minute)
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		x.Reset(time.Minute)
		assert.Empty(t, x.C(), "what it said before is forgotten")
		assert.True(t, x.Reset(time.Minute))
		x.Stop()
	})
}

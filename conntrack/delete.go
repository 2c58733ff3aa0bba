package conntrack

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// serves reports whether flows to an endpoint may go on. New flows go to an endpoint that is in a set, whatever its
// conditions.
func serves(e *model.Endpoint) bool { return e.Serving || e.Sets != 0 }

// maxPasses bounds how often an interrupted pass is repeated at once.
const maxPasses = 5

// pass passes over the table, again if it is interrupted.
func pass(
	ctx context.Context, table Table, family model.Family, only []Selection, stale func(Flow) bool,
) (deleted int, err error) {
	for range maxPasses {
		var n int
		n, err = table.DeleteUDP(ctx, family, only, stale)
		deleted += n
		if err == nil || !errors.Is(err, ErrInterrupted) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return deleted, fmt.Errorf("deleting stale %v UDP flows: %w", family, err)
	}
	return deleted, nil
}

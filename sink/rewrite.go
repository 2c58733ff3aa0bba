package sink

import "sigs.k8s.io/kube-proxy-lib/model"

// RewriteSink changes services before they reach a sink. See [Rewrite].
type RewriteSink struct {
	// Forward passes calls on to the next sink, including the optional ones.
	*Forward
	rewrite func(*model.Service) *model.Service
}

// Rewrite returns a Sink that passes on the result of rewrite for each service, and everything else unchanged. The
// function returns its argument or a changed copy; it must not write to the argument. It must keep the names of the
// service and of the ports, to which endpoints refer: if it returns a service with another name, the sink restores the
// name. A nil result means no change; use [Filter] to hide services.
//
// The sink remembers nothing: a change that the function hides is passed on as a call that changes nothing.
func Rewrite(next Sink, rewrite func(*model.Service) *model.Service) *RewriteSink {
	return &RewriteSink{NewForward(next), rewrite}
}

// SetService implements [Sink].
func (r *RewriteSink) SetService(service *model.Service) {
	if service == nil || r.rewrite == nil {
		r.Forward.SetService(service)
		return
	}
	rewritten := r.rewrite(service)
	if rewritten == nil {
		rewritten = service
	}
	if rewritten.Name != service.Name {
		renamed := *rewritten
		renamed.Name = service.Name
		rewritten = &renamed
	}
	r.Forward.SetService(rewritten)
}

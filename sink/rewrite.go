package sink

import "sigs.k8s.io/kube-proxy-lib/model"

// RewriteSink changes services on their way to a sink. See [Rewrite].
type RewriteSink struct {
	*Forward
	rewrite func(*model.Service) *model.Service
}

// Rewrite returns a Sink that passes on what rewrite makes of each service, and everything else as it is. The function
// returns its argument, or a changed copy: it may not write to the argument. It keeps the service's name and the names
// of the ports, to which endpoints refer: a service that it returns with another name gets its own name back. nil is
// taken for no change; to hide services there is [Filter].
//
// Nothing is remembered: a change that the function hides is passed on as a call that changes nothing.
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

package page

import (
	"net/http"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// serveExplanation answers what the explainer says of a service, for programs: kubectl serviceproxy explain --url.
func (p *Page) serveExplanation(w http.ResponseWriter, r *http.Request) {
	name := model.ServiceName{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}
	var e *localstate.Explanation
	known := false
	explainer := p.view().explainer
	if explainer == nil {
		http.Error(w, "this proxy does not compute its state itself: ask its brain, or use --kubeconfig",
			http.StatusNotFound)
		return
	}
	if !withSlot(r.Context(), p.working, func() { e, known = explainer.Explain(name) }) {
		return
	}
	if !known {
		http.Error(w, "service "+strconv.Quote(name.String())+" is not known", http.StatusNotFound)
		return
	}
	writeJSON(w, e)
}

package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// shortNames returns the short names that kubectl accepts for a kind.
func shortNames(kind string) []string {
	names := map[string]string{"CertificateSigningRequest": "csr", "ComponentStatus": "cs", "ConfigMap": "cm",
		"CronJob": "cj", "DaemonSet": "ds", "Deployment": "deploy",
		"Endpoints": "ep", "Event": "ev", "HorizontalPodAutoscaler": "hpa", "IPAddress": "ip", "Ingress": "ing",
		"LimitRange": "limits", "Namespace": "ns", "NetworkPolicy": "netpol", "Node": "no", "PersistentVolume": "pv",
		"PersistentVolumeClaim": "pvc", "Pod": "po", "PodDisruptionBudget": "pdb", "PriorityClass": "pc",
		"ReplicaSet": "rs", "ReplicationController": "rc", "ResourceQuota": "quota", "Service": "svc",
		"ServiceAccount": "sa", "StatefulSet": "sts", "StorageClass": "sc",
		"VolumeAttributesClass": "vac"}
	if name, ok := names[kind]; ok {
		return []string{name}
	}
	return nil
}

// categories returns the groups of kinds to which a kind belongs, as in kubectl get all.
func categories(kind string) []string {
	switch {
	case slices.Contains([]string{"CronJob", "DaemonSet", "Deployment", "HorizontalPodAutoscaler", "Job", "Pod",
		"ReplicaSet", "ReplicationController", "Service", "StatefulSet"}, kind):
		return []string{"all"}
	case strings.HasPrefix(kind, "ValidatingAdmissionPolicy"), strings.HasPrefix(kind, "MutatingAdmissionPolicy"),
		strings.HasSuffix(kind, "WebhookConfiguration"):
		return []string{"api-extensions"}
	}
	return nil
}

// serveOpenAPI serves the part of OpenAPI 3 that kubectl reads before it writes: it states that the server validates
// fields itself. It has no schemas.
func (s *Server) serveOpenAPI(w http.ResponseWriter, parts []string) error {
	var document any
	switch {
	case len(parts) == 1 && parts[0] == "v3":
		paths := map[string]any{}
		for r := range s.kinds {
			path := prefix(r.GroupVersion())
			paths[path] = map[string]string{"serverRelativeURL": "/openapi/v3/" + path}
		}
		document = map[string]any{"paths": paths}
	case len(parts) > 2 && parts[0] == "v3":
		of := strings.Join(parts[1:], "/")
		paths := map[string]any{}
		for r, k := range s.kinds {
			if prefix(r.GroupVersion()) == of {
				paths["/"+of+"/"+r.Resource+"/{name}"] = map[string]any{"patch": operation(k.gvk)}
			}
		}
		document = map[string]any{"openapi": "3.0.0", "info": map[string]string{"title": "Kubernetes", "version": "v1"},
			"paths": paths}
	default:
		w.WriteHeader(http.StatusNotFound)
		return nil
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(document)
}

// prefix returns the path of a group and version.
func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// operation describes the patch of an object.
func operation(gvk schema.GroupVersionKind) any {
	var parameters []any
	for _, name := range []string{"dryRun", "fieldManager", "fieldValidation", "force"} {
		parameters = append(parameters, map[string]any{"name": name, "in": "query",
			"schema": map[string]string{"type": "string"}})
	}
	return map[string]any{"parameters": parameters, "responses": map[string]any{},
		"x-kubernetes-group-version-kind": map[string]string{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}}
}

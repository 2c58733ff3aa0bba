package dropin

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/internal/program/buildinfo"
)

// statusz is kind Statusz of group config.k8s.io (KEP-4827).
type statusz struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        zpageMeta   `json:"metadata"`
	StartTime       metav1.Time `json:"startTime"`
	UptimeSeconds   int64       `json:"uptimeSeconds"`
	GoVersion       string      `json:"goVersion"`
	BinaryVersion   string      `json:"binaryVersion"`
	Paths           []string    `json:"paths"`
}

// flagz is kind Flagz of group config.k8s.io (KEP-4828).
type flagz struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        zpageMeta         `json:"metadata"`
	Flags           map[string]string `json:"flags,omitempty"`
}

type zpageMeta struct {
	Name string `json:"name"`
}

// statuszHandler returns the handler of /statusz for a program with this start time and these other paths.
func statuszHandler(started time.Time, paths []string) http.Handler {
	return &zpage{
		kind: "Statusz",
		object: func(meta metav1.TypeMeta) any {
			return statusz{TypeMeta: meta, Metadata: zpageMeta{component}, StartTime: metav1.NewTime(started),
				UptimeSeconds: int64(time.Since(started).Seconds()), GoVersion: runtime.Version(),
				BinaryVersion: buildinfo.Version(), Paths: paths}
		},
		text: func() string {
			up := int64(time.Since(started).Seconds())
			return fmt.Sprintf("Started: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nPaths: %s\n",
				started.Format(time.UnixDate), up/3600, up/60%60, up%60, runtime.Version(), buildinfo.Version(),
				strings.Join(paths, " "))
		},
	}
}

// flagzHandler returns the handler of /flagz for a command line.
func flagzHandler(flags map[string]string) http.Handler {
	return &zpage{
		kind: "Flagz",
		object: func(meta metav1.TypeMeta) any {
			return flagz{TypeMeta: meta, Metadata: zpageMeta{component}, Flags: flags}
		},
		text: func() string {
			var b strings.Builder
			for _, name := range slices.Sorted(maps.Keys(flags)) {
				fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
			}
			return b.String()
		},
	}
}

// zpage serves a page as text for people, and as versioned JSON or YAML for programs.
type zpage struct {
	kind   string
	object func(metav1.TypeMeta) any
	text   func() string
}

// zpageTypes returns the content types, in order of preference.
func zpageTypes() []string { return []string{"application/json", "application/yaml", "text/plain"} }

// ServeHTTP implements http.Handler.
func (z *zpage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	contentType, version, ok := z.negotiate(strings.Join(r.Header.Values("Accept"), ","))
	if !ok {
		http.Error(w, fmt.Sprintf("not acceptable: use text/plain, or application/json and application/yaml "+
			"with the parameters g=config.k8s.io;v=v1beta1;as=%s", z.kind), http.StatusNotAcceptable)
		return
	}
	name := strings.ToLower(z.kind)
	if contentType == "text/plain" {
		// All components print these first lines, which programs look for.
		text("text/plain; charset=utf-8", fmt.Sprintf("\n%s %s\nWarning: This endpoint is not meant to be machine "+
			"parseable: ask for application/json.\n\n%s", component, name, z.text())).ServeHTTP(w, r)
		return
	}
	body, err := json.Marshal(z.object(metav1.TypeMeta{APIVersion: "config.k8s.io/" + version, Kind: z.kind}))
	if err == nil && contentType == "application/yaml" {
		body, err = yaml.JSONToYAML(body)
	}
	if err != nil {
		klog.FromContext(r.Context()).Error(err, "Cannot answer a request", "path", r.URL.Path)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if version == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "config.k8s.io/v1alpha1 of %s is deprecated: ask for v1beta1"`, name))
	}
	text(contentType, string(body)).ServeHTTP(w, r)
}

// negotiate returns the content type, and the version of an object, for an Accept header. It returns objects only for a
// known kind and version; without a header, and for */*, it returns text.
func (z *zpage) negotiate(accept string) (contentType, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", "", true
	}
	best := 0.0
	for clause := range strings.SplitSeq(accept, ",") {
		asked, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			quality = q
		}
		if quality <= best {
			continue
		}
		if t := z.match(asked, params); t != "" {
			best, contentType, version, ok = quality, t, params["v"], true
		}
	}
	return contentType, version, ok
}

// match returns the content type for one clause of an Accept header, or "".
func (z *zpage) match(asked string, params map[string]string) string {
	object := params["as"] == z.kind && params["g"] == "config.k8s.io" &&
		(params["v"] == "v1beta1" || params["v"] == "v1alpha1")
	plain := params["as"] == "" && params["g"] == "" && params["v"] == ""
	for _, t := range zpageTypes() {
		family, _, _ := strings.Cut(t, "/")
		if (asked == t || asked == family+"/*" || asked == "*/*") &&
			(t == "text/plain" && plain || t != "text/plain" && object) {
			return t
		}
	}
	return ""
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// state is the printed form of a snapshot.
type state struct {
	Node     *model.Node `json:"node"`
	Services []service   `json:"services"`
}

type service struct {
	Service   *model.Service    `json:"service"`
	Endpoints []*model.Endpoint `json:"endpoints"`
}

// stateOf converts a snapshot. It copies nothing, because a snapshot and its values are immutable.
func stateOf(s *sink.Snapshot) state {
	out := state{Node: s.Node(), Services: []service{}}
	for entry := range s.Services() {
		endpoints := entry.Endpoints
		if endpoints == nil {
			endpoints = []*model.Endpoint{} // [] in JSON, not null
		}
		out.Services = append(out.Services, service{entry.Service, endpoints})
	}
	return out
}

func (s state) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.Node)
	for _, svc := range s.Services {
		fmt.Fprintln(&b, svc.Service)
		for _, e := range svc.Endpoints {
			fmt.Fprintf(&b, "  %v\n", e)
		}
	}
	return b.String()
}

type printFunc func(io.Writer, any) error

// printer returns the function that prints a value in a format.
func printer(format string) (printFunc, error) {
	if template, ok := strings.CutPrefix(format, "jsonpath="); ok {
		return jsonPath(template)
	}
	switch format {
	case "text":
		return func(w io.Writer, v any) error {
			_, err := fmt.Fprint(w, v)
			return err
		}, nil
	case "json":
		return func(w io.Writer, v any) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(v)
		}, nil
	case "yaml":
		return func(w io.Writer, v any) error {
			b, err := yaml.Marshal(v)
			if err == nil {
				_, err = fmt.Fprintf(w, "---\n%s", b)
			}
			return err
		}, nil
	}
	return nil, fmt.Errorf("output format %q is not one of text, json, yaml and jsonpath=TEMPLATE", format)
}

// jsonPath returns the function that prints the parts of a value that a template selects, like kubectl's.
func jsonPath(template string) (printFunc, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("output format jsonpath=%s: %w", template, err)
	}
	return func(w io.Writer, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		var plain any // with the names of JSON
		if err := json.Unmarshal(b, &plain); err != nil {
			return err
		}
		if err := path.Execute(w, plain); err != nil {
			return fmt.Errorf("output format jsonpath=%s: %w", template, err)
		}
		_, err = fmt.Fprintln(w)
		return err
	}, nil
}

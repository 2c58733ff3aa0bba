package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// state is what is printed.
type state struct {
	Node     *model.Node `json:"node"`
	Services []service   `json:"services"`
}

type service struct {
	Service   *model.Service    `json:"service"`
	Endpoints []*model.Endpoint `json:"endpoints"`
}

// stateOf returns the parts of a snapshot. Nothing is copied: a snapshot and its values never change.
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

// printFunc prints a value.
type printFunc func(io.Writer, any) error

// printer returns the function that prints values in a format.
func printer(format string) (printFunc, error) {
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
	return nil, fmt.Errorf("output format %q is not one of text, json, yaml", format)
}
